// Package vmtest holds the test of the kernel side against the kernel that
// runs: its hooks, each with all that it could be replaced by, and exchanges of
// real programs through them. `make test-vm` runs it under other kernels.
package vmtest
