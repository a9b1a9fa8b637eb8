package probe

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupRoot finds the root of the cgroup-2 tree; where none is mounted it
// mounts it on a folder of its own, which unmount takes away.
func cgroupRoot() (path string, unmount func() error, err error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", nil, fmt.Errorf("find cgroup-2: %w", err)
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil, nil
		}
	}
	path, err = os.MkdirTemp("", "peel-cgroup")
	if err != nil {
		return "", nil, fmt.Errorf("mount cgroup-2: %w", err)
	}
	if err := unix.Mount("peel", path, "cgroup2", 0, ""); err != nil {
		return "", nil, errors.Join(
			fmt.Errorf("mount cgroup-2: %w; mount it yourself: mount -t cgroup2 none /sys/fs/cgroup", err),
			os.Remove(path))
	}
	return path, func() error {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount cgroup-2: %w", err)
		}
		return os.Remove(path)
	}, nil
}
