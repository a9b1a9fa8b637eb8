package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const connections = 8

// load is one run of h2load.
type load struct {
	rate           float64 // requests a second
	mean, p50, p99 float64 // latency, µs
	cpu            float64 // of client and server, ns a request
	observer       float64 // of the observer that wrapped it, ns a request
	said           words
}

type bench struct {
	dir    string
	port   int
	libssl string
	server *exec.Cmd
}

// newBench starts nghttpd, which serves 100 bytes over TLS on loopback.
func newBench(ctx context.Context, dir string) (*bench, error) {
	b := &bench{dir: dir}
	if err := certificate(dir+"/key.pem", dir+"/cert.pem"); err != nil {
		return nil, err
	}
	if err := os.WriteFile(dir+"/100", bytes.Repeat([]byte("x"), 100), 0o644); err != nil {
		return nil, fmt.Errorf("writing the document: %w", err)
	}
	out, err := exec.CommandContext(ctx, "sh", "-c", `ldd "$(command -v h2load)"`).Output()
	if err != nil {
		return nil, fmt.Errorf("finding h2load's libraries: %w", err)
	}
	match := regexp.MustCompile(`libssl\S* => (\S+)`).FindSubmatch(out)
	if match == nil {
		return nil, fmt.Errorf("finding h2load's libssl: not among its libraries")
	}
	b.libssl = string(match[1])

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("finding a free port: %w", err)
	}
	b.port = listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	b.server = exec.CommandContext(ctx, "nghttpd", "-a", "127.0.0.1", "-d", dir,
		strconv.Itoa(b.port), dir+"/key.pem", dir+"/cert.pem")
	if err := b.server.Start(); err != nil {
		return nil, fmt.Errorf("starting nghttpd: %w", err)
	}
	for range 100 {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)))
		if err == nil {
			conn.Close()
			return b, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.close()
	return nil, fmt.Errorf("waiting for nghttpd: it does not listen")
}

func (b *bench) close() {
	b.server.Process.Kill() //nolint:errcheck // it may be gone already
	b.server.Wait()         //nolint:errcheck // killed
}

// load runs h2load once, inside the observer's command if it wraps.
func (b *bench) load(ctx context.Context, wrap []string, n, streams int) (load, error) {
	self, err := os.Executable()
	if err != nil {
		return load{}, fmt.Errorf("finding this program: %w", err)
	}
	logFile, usageFile := b.dir+"/log", b.dir+"/usage"
	os.Remove(logFile)   // h2load appends
	os.Remove(usageFile) // a run without one must not find the last one's
	args := slices.Concat(wrap, []string{self, measureCommand, usageFile,
		"h2load", "-c", strconv.Itoa(connections), "-m", strconv.Itoa(streams), "-n", strconv.Itoa(n),
		"--log-file=" + logFile, fmt.Sprintf("https://127.0.0.1:%d/100", b.port)})

	var stdout bytes.Buffer
	stderr := newListener("")
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, stderr
	before, err := processCPU(b.server.Process.Pid)
	if err != nil {
		return load{}, err
	}
	if err := cmd.Run(); err != nil {
		return load{}, fmt.Errorf("running %s: %w\n%s", strings.Join(args, " "), err, stderr.text())
	}
	after, err := processCPU(b.server.Process.Pid)
	if err != nil {
		return load{}, err
	}
	var used usage
	data, err := os.ReadFile(usageFile)
	if err == nil {
		err = json.Unmarshal(data, &used)
	}
	if err != nil {
		return load{}, fmt.Errorf("reading h2load's CPU time: %w", err)
	}

	r := load{said: stderr.words()}
	if r.rate, err = parseRate(stdout.String(), n); err != nil {
		return load{}, err
	}
	latencies, err := readLatencies(logFile)
	if err != nil {
		return load{}, err
	}
	r.mean, r.p50, r.p99 = mean(latencies), quantile(latencies, 0.5), quantile(latencies, 0.99)
	r.cpu = float64(used.Child+after-before) / float64(n)
	if len(wrap) > 0 {
		r.observer = float64(rusageCPU(cmd.ProcessState)-used.Child-used.Self) / float64(n)
	}
	return r, nil
}

// parseRate returns the requests a second from h2load's output; all n
// requests must have succeeded.
func parseRate(out string, n int) (float64, error) {
	if !strings.Contains(out, fmt.Sprintf(" %d succeeded,", n)) {
		return 0, fmt.Errorf("h2load did not get all its answers:\n%s", out)
	}
	match := regexp.MustCompile(`finished in .*?, ([\d.]+) req/s`).FindStringSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("h2load printed no rate:\n%s", out)
	}
	return strconv.ParseFloat(match[1], 64)
}

// readLatencies returns the third column of h2load's log, µs, sorted.
func readLatencies(name string) ([]float64, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("reading h2load's log: %w", err)
	}
	defer f.Close()
	var latencies []float64
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		if len(fields) < 3 {
			return nil, fmt.Errorf("reading h2load's log: line %q", lines.Text())
		}
		us, err := strconv.ParseFloat(fields[2], 64)
		if err != nil {
			return nil, fmt.Errorf("reading h2load's log: %w", err)
		}
		latencies = append(latencies, us)
	}
	if len(latencies) == 0 {
		return nil, fmt.Errorf("reading h2load's log: it is empty")
	}
	slices.Sort(latencies)
	return latencies, lines.Err()
}

// measureCommand makes this program run a command and write what it used, so
// that its CPU time can be told from that of the observer that wraps it.
const measureCommand = "measure"

// usage is CPU time in nanoseconds.
type usage struct{ Child, Self int64 }

func measure(name string, args []string) int {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "costbench:", err)
		return 1
	}
	var self unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &self)
	if err == nil {
		var data []byte
		if data, err = json.Marshal(usage{Child: rusageCPU(cmd.ProcessState), Self: self.Nano()}); err == nil {
			err = os.WriteFile(name, data, 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "costbench: writing the CPU time:", err)
		return 1
	}
	return 0
}

// rusageCPU is the CPU time of a process that ended, and of the children it
// waited for, ns.
func rusageCPU(state *os.ProcessState) int64 {
	ru := state.SysUsage().(*syscall.Rusage)
	return ru.Utime.Nano() + ru.Stime.Nano()
}

// processCPU is the CPU time of all threads of a running process, ns, by the
// clock that clock_getcpuclockid(3) gives: finer than the ticks in /proc.
func processCPU(pid int) (int64, error) {
	const cpuclockSched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuclockSched), &ts); err != nil {
		return 0, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
	}
	return ts.Nano(), nil
}

// certificate writes a self-signed key pair for 127.0.0.1.
func certificate(keyFile, certFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding the key: %w", err)
	}
	for name, block := range map[string]*pem.Block{
		keyFile:  {Type: "PRIVATE KEY", Bytes: keyDER},
		certFile: {Type: "CERTIFICATE", Bytes: cert},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			return fmt.Errorf("writing the certificate: %w", err)
		}
	}
	return nil
}
