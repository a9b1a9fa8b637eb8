// Package exchange is the record: one request and its response, as every
// output shows it, with the marks and the evidence its split is made from.
// It holds data only.
package exchange

import (
	"net/netip"
	"slices"
	"time"
)

// Schema names the record's format.
const Schema = "peel.exchange/1"

// Phase is a stretch of an exchange's time. Phases are in order and touch.
type Phase uint8

// The phases. What lies between two of the others belongs to Blocked.
const (
	DNS Phase = iota
	Connect
	TLS
	Blocked
	Send
	Wait
	Receive
	Read
	NumPhases
)

// String returns the phase's name in every output.
func (p Phase) String() string {
	return [NumPhases]string{"dns", "connect", "tls", "blocked", "send", "wait", "receive", "read"}[p]
}

// Party is who spent the time.
type Party uint8

// The parties.
const (
	Client Party = iota
	Network
	Server
	NumParties
)

// String returns the party's name in every output.
func (p Party) String() string { return [NumParties]string{"client", "network", "server"}[p] }

// Component is a sum that people quote. The five add up to the total.
type Component uint8

// The components: Handshake is connect and tls with all their parties; the
// last three are the parties' shares of the phases from blocked on.
const (
	CompDNS Component = iota
	CompHandshake
	CompNetwork
	CompServer
	CompClient
	NumComponents
)

// String returns the component's name in every output.
func (c Component) String() string {
	return [NumComponents]string{"dns", "handshake", "network", "server", "client"}[c]
}

// Bounded is a time with the bounds that hold the truth, all in nanoseconds.
type Bounded struct {
	Value, Low, High int64
}

// Split is a phase's time (Seen says whether it could be seen at all) and its
// parts. The parts' values add up to Total.
type Split struct {
	Total int64
	Seen  bool
	Parts [NumParties]Bounded
}

// Timeline holds the marks of an exchange: CLOCK_MONOTONIC nanoseconds, 0 for
// a mark that was not seen or does not apply (connection set-up that another
// exchange paid for).
type Timeline struct {
	Need int64 // start of the exchange

	// Connection set-up, only on the exchange that waited for it.
	SYN          int64 // last SYN that was answered leaves
	FirstSYN     int64 // first SYN leaves; differs from SYN when it had to be sent again
	SYNACK       int64 // SYN-ACK arrives
	Hello        int64 // ClientHello's first byte leaves
	ServerFlight int64 // server's first flight: first byte arrives (after its last HelloRetryRequest)
	FlightEnd    int64 // last inbound segment before the client's Finished leaves
	Secured      int64 // client's Finished leaves; TLS 1.2 full handshake: server's Finished arrives

	Written      int64 // request head handed to TLS; 0 for plain HTTP
	FirstOut     int64 // first byte of the request leaves
	LastOut      int64 // last transmission of the request's last byte leaves
	LastOutFirst int64 // first transmission of the same
	Acked        int64 // request's last byte is acknowledged
	FirstIn      int64 // first byte of the response arrives, in any order
	LastIn       int64 // last byte of the response arrives
	FirstRead    int64 // application gets the first byte
	LastRead     int64 // application gets the last byte
}

// RTTSample is a round trip measured on the connection.
type RTTSample struct {
	At  int64 // when it was complete
	RTT int64
}

// Evidence is what the split of network from server and client rests on.
// Times are nanoseconds, 0 where there is none.
type Evidence struct {
	KernelMinRTT int64       // the kernel's windowed minimum, read at FirstIn
	SYNRTT       int64       // SYN to SYN-ACK of this connection, also on a reused one
	HelloACK     int64       // ClientHello to the pure ACK that covers it, if it came before the server's flight
	OwnACK       int64       // LastOut to the pure ACK that covers the request's last byte, if it came before the response
	CleanACKs    []RTTSample // latest first, at most 32: earlier data segments to their pure ACKs, neither retransmitted nor answered with data
	PathACKs     []RTTSample // the same, from other connections to the same peer address, for a connection too new to have its own

	// Waits are LastOut to FirstIn of the latest exchanges before this one to
	// the same peer address that were complete and not sent again, latest
	// first, at most 32: they tell an unusual wait from a usual one.
	Waits []int64

	RequestSegments  int  // transmissions that carried the request
	RequestResent    bool // a part of the request was sent again
	ResponseRecovery bool // a part of the response came late after one sent behind it
	HelloRetry       bool // the server asked for another ClientHello
	FullHandshake12  bool // TLS 1.2 without resumption: a second round trip in tls
	LocalPeer        bool // the peer is this host: the round trip has no wire in it

	// Send is split by what kept the next byte from leaving.
	SendClient  int64 // nothing to send: the application had not written it yet
	SendNetwork int64 // written, unsent: congestion window, recovery
	SendWindow  int64 // written, unsent, and the peer's window was closed

	// Receive is split by what came before each gap between arrivals.
	ReceiveIdle     int64 // the sender had sent all it had (push at a record's end): the server's
	ReceiveMid      int64 // within a record or burst: the sender's window, pacing or the wire
	ReceiveRecovery int64 // loss recovery
	ReceiveWindow   int64 // our window was closed: the client's

	// Blocked ended by a closed congestion or flow-control window.
	BlockedNetwork int64
	BlockedServer  int64
}

// Process is the client.
type Process struct {
	PID  uint32
	Comm string
	Exe  string
	// Container, Pod, Namespace are empty where there is none.
	Container, Pod, Namespace string
}

// Connection is what carried the exchange.
type Connection struct {
	ID            string
	Local, Peer   netip.AddrPort
	Transport     string
	Reused        bool
	Sequence      int // exchanges on the connection, from 1
	Inflight      int // exchanges open to the same host at need, this one included
	SeenFromStart bool
	MinRTT        int64 // ns, 0 if none
	SRTT          int64
	Retransmits   int
}

// TLSInfo describes the connection's TLS. Nil on plain HTTP.
type TLSInfo struct {
	Library     string // "openssl", …; empty when only the wire was seen
	Version     string // "1.2", "1.3"
	SNI         string
	ALPN        string // chosen; from the plaintext where the wire hides it
	ALPNOffered []string
	Cipher      string // IANA name
	Group       string // IANA name
	Resumed     *bool  // nil: not seen
	JA4         string
}

// HTTP describes the messages. Sizes are -1 where not known. Header maps hold
// allow-listed fields; a secret's value is "present".
type HTTP struct {
	Version             string // "1.0", "1.1", "2"
	StreamID            uint32
	Method              string
	Authority           string
	Path                string // without its query
	Status              int    // 0: no final answer seen
	RequestHeaderBytes  int64
	ResponseHeaderBytes int64
	RequestBodyBytes    int64
	ResponseBodyBytes   int64
	RequestHeaders      map[string]string
	ResponseHeaders     map[string]string
	ContentType         string
	GRPCStatus          *int
	Reset               string // HTTP/2 error code's name, or "connection"
	RetryOf             string
}

// Quality says how far to trust the record.
type Quality struct {
	Plaintext  bool
	Complete   bool // request and response were seen to their ends
	LostEvents int
	RTTSource  string // what the wait's network value rests on
	Notes      []string
}

// Record is one exchange. Start is Timeline.Need on the wall clock.
type Record struct {
	Start      time.Time
	Node       string
	Role       string
	Process    Process
	Connection Connection
	TLS        *TLSInfo
	HTTP       *HTTP

	Timeline Timeline
	Evidence Evidence

	// Filled by package latency.
	Phases     [NumPhases]Split
	Components [NumComponents]Bounded
	TTFB       int64
	Total      int64

	Quality Quality
}

// Clone returns a record that is the caller's to keep. What it points to
// besides HTTP and the notes is shared and must not be changed.
func (r *Record) Clone() *Record {
	c := *r
	if r.HTTP != nil {
		http := *r.HTTP
		c.HTTP = &http
	}
	c.Quality.Notes = slices.Clone(r.Quality.Notes)
	return &c
}
