# The objects under bpf/ are compiled with exactly this clang.
CLANG_VERSION := 19.1.7
# How long `make fuzz` runs each target.
FUZZTIME ?= 20s
# The kernels of `make test-vm`: VERSION/SUITE of Debian's cloud kernels.
VM_KERNELS ?= 5.10/bullseye-security 6.1/bookworm-security 6.12/bookworm-security 7/trixie-backports

VM_PROGRAMS := curl nghttpd
TEST_PROGRAMS := curl nghttpd nghttp h2load nginx /usr/bin/python3
TEST_PACKAGES := curl nghttp2-server nghttp2-client nginx python3

.PHONY: help build generate verify-generate test test-vm accuracy bench fuzz lint fmt demo

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

build: ## build ./peel
	go build -o peel ./cmd/peel

demo: ## observe a local API stand-in with known delays (root)
	go run ./cmd/peel demo

test: ## vet and run all tests, against real clients and servers too (root)
	@[ "$$(id -u)" = 0 ] || { echo "make test loads BPF programs and makes network namespaces: run it as root, for example sudo -E env PATH=\"\$$PATH\" make test" >&2; exit 2; }
	@for p in $(TEST_PROGRAMS); do command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	[ -z "$$missing" ] || { printf 'make test needs%s:\n  apt-get install -y $(TEST_PACKAGES)\n' "$$missing" >&2; exit 2; }
	go vet ./...
	# One package at a time: each attaches to the same kernel.
	go test -p 1 ./...

test-vm: ## run the kernel side's tests under other kernels in qemu (VM_KERNELS)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	CGO_ENABLED=0 go test -c -o "$$dir/vm.test" ./collector/probe/vmtest || exit; \
	for kernel in $(VM_KERNELS); do \
		.ci/vmtest $(addprefix -x ,$(VM_PROGRAMS)) "$$kernel" "$$dir/vm.test" -test.v || failed="$$failed $$kernel"; \
	done; \
	[ -z "$$failed" ] || { echo "test-vm: not passed on$$failed" >&2; exit 1; }

fuzz: ## fuzz every parser for FUZZTIME
	@set -e; for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r dirname | sort -u); do \
		for target in $$(go test -list '^Fuzz' "$$dir" | grep '^Fuzz'); do \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$dir"; \
		done; \
	done

accuracy: ## measure the split's error against known truth (root)
	go run ./cmd/accuracy

bench: ## measure what peel costs those it watches (root)
	go run ./cmd/costbench

generate: ## compile bpf/ and make its Go bindings (needs clang-19, libbpf-dev)
	go generate ./bpf

verify-generate: ## compile bpf/ elsewhere and compare byte for byte
	@have=$$(clang-19 --version 2>/dev/null | sed -n 's/.*clang version \([0-9.]*\).*/\1/p'); \
	[ "$$have" = $(CLANG_VERSION) ] || { echo "verify-generate: the objects are made with clang-19 $(CLANG_VERSION), here is $${have:-none} (Debian: apt-get install clang-19 llvm-19)" >&2; exit 2; }
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	cp -r go.mod go.sum bpf "$$dir" && rm -f "$$dir"/bpf/*.o && (cd "$$dir" && go generate ./bpf) && diff -r bpf "$$dir/bpf" || \
	{ echo "verify-generate: bpf/ is not what its sources compile to: run make generate and commit" >&2; exit 1; }

lint: ## run golangci-lint with the rules of .golangci.yaml
	go tool -modfile=.ci/tools.mod golangci-lint run ./...

fmt: ## format the Go code
	gofmt -w bpf cmd collector exporter
