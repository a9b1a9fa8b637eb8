package conn

// Notes that the tracker puts on a record. The set is closed, so that a note
// can be counted and compared.
const (
	NoteIdleSetup     = "set-up not charged: the connection was idle before its first request"
	NoteLateSetup     = "set-up not seen: the connection was there before the observation"
	NoteHandshake     = "the TLS handshake's end was not seen on the wire"
	NoteFalseStart    = "the request left before the handshake ended"
	NoteLost          = "events of this connection were lost while the exchange was open"
	NoteFraming       = "message framing was lost while the exchange was open"
	NoteFields        = "some header fields were not known: a header block or its table was lost"
	NoteSegments      = "some packets of this exchange were not seen"
	NoteInterim       = "interim (1xx) answers came before the answer"
	NoteReusedID      = "the stream's id was not higher than those before it"
	NoteEarlyAnswer   = "the answer ended before the request did"
	NoteEndInferred   = "the end of the answer was inferred from the next request"
	NoteUpgraded      = "the connection changed to another protocol"
	NoteNagle         = "a part of the request waited for the acknowledgement of the part before it (Nagle's algorithm)"
	NoteResentBefore  = "bytes sent before the request on this connection were sent again while it waited"
	NoteUnread        = "the application was not seen to read the whole answer"
	NoteClosed        = "connection closed before the answer ended"
	NoteResetByPeer   = "connection reset before the answer ended"
	NoteStreamReset   = "stream reset before the answer ended"
	NoteGoAway        = "the server sent GOAWAY and did not process the request"
	NoteEvicted       = "the exchange was given up to bound memory"
	NoteExpired       = "the exchange was given up after its end had not been seen for long"
	NoteFlushed       = "the observation ended before the answer did"
	NoteTruncatedSend = "the end of the request was not seen"
)

// Reasons why an exchange is incomplete, as Stats counts them.
const (
	reasonClosed  = "closed"
	reasonRST     = "connection reset"
	reasonReset   = "stream reset"
	reasonGoAway  = "goaway"
	reasonEvicted = "evicted"
	reasonExpired = "expired"
	reasonFraming = "framing lost"
)

// Reasons why no exchange was found on a connection, as Stats counts them.
const (
	unknownServer    = "accepted connections are not followed"
	unknownConnect   = "not connected"
	unknownHandshake = "TLS handshake not finished"
	unknownPlaintext = "TLS, plaintext not seen"
	unknownProtocol  = "not HTTP"
	unknownIdle      = "no request was sent"
)
