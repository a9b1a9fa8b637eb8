// Package latency splits the time of an exchange: into phases, each phase
// between client, network and server, and the whole into the sums that people
// quote. It is pure. All times are nanoseconds of CLOCK_MONOTONIC.
//
// # Phases
//
// The phases touch. Between the marks of exchange.Timeline:
//
//	connect  FirstSYN … SYNACK   retries of the SYN included
//	tls      Hello … Secured
//	send     FirstOut … LastOut  cut at FirstIn when the answer comes earlier
//	wait     LastOut … FirstIn   0 then
//	receive  FirstIn … LastIn
//	read     LastIn … LastRead
//	blocked  all between them
//
// and so Σ phases = Total = LastRead (else LastIn, else the last mark) − Need.
// A mark that lies before its predecessor counts as if it were at that one. A
// phase that the exchange did not pay for is seen and 0. One that could not be
// seen has no time of its own: that is in blocked, where any party may have
// it, and a note says why.
//
// # The round trip
//
// From one host the server's time shows only as what is left of a wait W when
// the network's round trip N is taken away:
//
//	server = W − N,  server low = W − N high,  server high = W − N low
//
// each within [0, W]. W begins at the last transmission of the request's last
// byte and ends at the first byte of the answer, in whatever order bytes come;
// counted from the first transmission, a lost request makes the server's time
// too long by the whole retransmission timeout (237 ms were measured).
//
// N is not measured but estimated, from samples that each exceed the round
// trip of an empty path by what delayed them: an ACK of data, SYN to SYN-ACK,
// the kernel's windowed minimum (net.ipv4.tcp_min_rtt_wlen). Never the smoothed
// round trip (RFC 6298): ACKs that ride on an answer put the server's time into
// it. Never a delayed ACK (RFC 1122, section 4.2.3.2: up to 500 ms; Linux: 40):
// samples over minimum + 20 ms are left out.
//
// The value of N, and Quality.RTTSource:
//
//	own_ack     a request of several segments: its own ACK, which knows the
//	            queue that the request made; on a path with jitter the mean of
//	            own ACK and median, since half of an ACK's way is the request's
//	ack_median  a path whose recent clean ACKs have a median well above the
//	            minimum (jitter, or a longer route): that median
//	rtt_min     else, the smallest of all samples
//	syn         the same, when SYN to SYN-ACK is all there is
//	none        no sample: the server gets all of W, bounds [0, W]
//
// The bounds, with m the smallest sample, k the samples that agree with it, n
// those that are prompt, M and x̃ their maximum and median:
//
//	low   m − 30 µs − m/1000 − 400 µs/k       less 3 ms more if k < 2
//	high  m + 150 µs + 9 m/1000               on a calm path: n ≥ 8, M below this + 100 µs
//	      and 3 ms more, at least M + 5 (M − x̃)/√n; low: m − 30 µs − 3 (x̃ − m)/√n   else
//	      at least own ACK + 150 µs + 9 m/1000, where there is a prompt one
//
// A machine's scheduler or hypervisor stops now and then: about one exchange
// in a hundred is 0.5 to 3 ms late for no reason that it shows. Where the
// samples give no proof of a calm path, bounds allow for that; on a calm path
// they do not, and miss those that come without a warning. Better proof is how
// long the answers before took (exchange.Evidence.Waits): if many took as long
// as this one, and not many so much less that a stall would make up for it, no
// stall hit this one, whatever the samples say; if it is the other way round,
// one may have, on a calm path too. Where packets get
// lost, a wait of more than 200 ms (Linux's least retransmission timeout) may
// hide the loss of a whole answer, and the server's low bound says so; a
// request that was sent again may have been answered at its first copy.
//
// Measured between two network namespaces, 1 to 50 ms one way: the error of
// W − rtt_min is 19–61 µs at the median and 0.5–3 ms at the 99th percentile.
// The constants are in model.go. TestModel shows the error, the width and the
// coverage of the bounds on simulated paths:
//
//	go test -run TestModel -v ./collector/latency
//
// # The other phases
//
// connect is network. In tls the server has ServerFlight − Hello − N, the
// network N and the rest of the flight (bounds let the server have that: it
// may have computed between two segments), the client Secured − FlightEnd. A
// HelloRetryRequest (RFC 8446, section 4.1.4) costs another N, a full TLS 1.2
// handshake (RFC 5246, section 7.3) too; what both sides computed around the
// latter cannot be told apart, so each gets half and may have all or nothing.
//
// send, receive and blocked are split by what exchange.Evidence says kept the
// bytes. What nobody accounts for is the client's in send and the network's in
// receive, with bounds that let the other have it. read is the client's.
//
// # Components
//
// dns and handshake (connect and tls) are whole phases and exact. network,
// server and client sum the parts of all other phases; their bounds sum the
// parts' bounds, which is wider than needed, never narrower.
package latency
