package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/peel-dev/peel/collector/probe"
	"github.com/peel-dev/peel/collector/probe/target"
)

func doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host can show, what not, why, and the remedy",
		Long: "doctor loads and attaches every hook for a moment and says which serves each purpose. It ends\n" +
			"with status 3 when peel cannot do its main job here.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return doctor(c.OutOrStdout())
		},
	}
}

func doctor(w io.Writer) error {
	p, err := probe.Open(probe.Options{Logger: slog.New(slog.DiscardHandler), Client: true})
	if p == nil {
		fmt.Fprintln(w, "nothing can be loaded on this host")
		return failure(err)
	}
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	st := style(w)
	if !st.Unicode {
		t.Style().Box = table.StyleBoxDefault
	}
	narrow := max(20, (st.Width-32)/2)
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 2, WidthMax: narrow, WidthMaxEnforcer: text.WrapSoft},
		{Number: 3, WidthMax: narrow, WidthMaxEnforcer: text.WrapSoft},
	})
	t.AppendHeader(table.Row{"purpose", "served by", "would be better, or why not"})
	for _, hook := range byInterest(p.Hooks()) {
		serving, notes := hook.Serving(), ""
		if serving == "" {
			serving = "nothing"
		}
		for _, a := range hook.Attempts {
			if a.Err != nil {
				notes += fmt.Sprintf("%s: %s\n", a.Hook, a.Err)
			}
		}
		if hook.Err() != nil {
			notes += "remedy: " + hook.Remedy
		}
		t.AppendRow(table.Row{string(hook.Purpose), serving, notes})
	}
	t.Render()
	err = errors.Join(err, libraries(w, p), p.Close())
	if errors.Is(err, probe.ErrUnable) {
		return err
	}
	if err != nil {
		return failure(err)
	}
	fmt.Fprintln(w, "\npeel can do its main job here: peel run -- COMMAND")
	return nil
}

// byInterest puts the purposes in the order in which a request meets them.
func byInterest(hooks []probe.Hook) []probe.Hook {
	order := []probe.Purpose{probe.Connect, probe.Segments, probe.RoundTrip, probe.Records, probe.Plaintext, probe.Join, probe.Names}
	sorted := slices.Clone(hooks)
	slices.SortStableFunc(sorted, func(a, b probe.Hook) int {
		return slices.Index(order, a.Purpose) - slices.Index(order, b.Purpose)
	})
	return sorted
}

// libraries says what would be seen of each TLS library of this host.
func libraries(w io.Writer, p *probe.Probe) error {
	paths, err := target.Libraries("/")
	if err != nil {
		return fmt.Errorf("list libraries: %w", err)
	}
	fmt.Fprintln(w, "\nTLS libraries of this host:")
	if len(paths) == 0 {
		fmt.Fprintln(w, "  none; plain HTTP and the timing of connections and handshakes are seen all the same")
	}
	for _, path := range paths {
		lib, _, err := p.AttachLibrary(path, 0)
		if err != nil {
			fmt.Fprintf(w, "  %s: not probed: %s\n", path, err)
			continue
		}
		fmt.Fprintf(w, "  %s\n", path)
		for _, site := range lib.Sites {
			cost := "cheap: the kernel emulates the instruction there"
			if !site.ReturnCheap {
				cost = "dear: the kernel single-steps the instruction there, " +
					"which may cost ten times more"
			}
			fmt.Fprintf(w, "    %-5s %s at %#x, %s\n", site.Op, strings.Join(site.Symbols, ", "), site.Return, cost)
		}
	}
	return nil
}
