// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// http.h finds the heads in a plaintext stream and copies those alone: HTTP/2
// frame headers and the payloads of frames that hold no body (RFC 9113 section
// 4.1), HTTP/1 message heads (RFC 9112 section 2.1). A body's bytes are
// counted and never reach an event.
#pragma once

#include "maps.h"

#define PASSES 32 // events that one call may fill: 64 KiB of heads
#define STEPS 128 // frames or lines looked at for one event
#define SMALL_DATA 256
#define MIDDLE_DATA 512
#define LINE_CHUNK 64
#define HEAD_MAX 65536

#define FRAME_HEADER 9
#define FRAME_PADDED 8
#define FRAME_MOST (1 << 20)
#define TYPE_MOST 0x40
#define H2_DATA 0
#define H2_SETTINGS 4
#define H2_PING 6
#define H2_GOAWAY 7
#define H2_WINDOW_UPDATE 8
#define H2_CONTINUATION 9
#define PREFACE_LEN 24

enum stream_state {
	STREAM_HEAD,  // the next byte begins a head, or goes on with it
	STREAM_BODY,  // remain bytes of body, then a head
	STREAM_UNTIL, // a body whose end the kernel cannot tell
};

// gap says where something was lost.
enum gap {
	GAP_NONE,
	GAP_BEFORE, // before the next event
	GAP_AHEAD,  // after it
};

enum body {
	BODY_NONE,
	BODY_LENGTH,
	BODY_CHUNKED,
};

// source is where a stretch of plaintext lies: in the process (skb NULL) or in
// a packet.
struct source {
	struct __sk_buff *skb;
	__u64 buffer;
	__u32 base;
};

// known returns a source of which the compiler knows what it is: the verifier
// of Linux 6.1 has forgotten it where bpf_loop() calls, and refuses the other
// kind's helper.
static __always_inline struct source known(const struct source *source, const bool packet)
{
	struct source known = *source;

	if (!packet)
		known.skb = NULL;
	else if (!known.skb)
		__builtin_unreachable();
	return known;
}

// load copies from 1 to most bytes.
static __always_inline long load(const struct source *source, __u32 at, void *to, __u32 len,
				 const __u32 most)
{
	len = one_to(len, most);
	if (source->skb)
		return bpf_skb_load_bytes(source->skb, source->base + at, to, len);
	return bpf_probe_read_user(to, len, (void *)(source->buffer + at));
}

// sheet is the event that is being filled; NULL stands for a sheet that the
// ring had no room for. room is a power of two: what its data was reserved with, less the most that one
// step copies. How far it is filled stands in the event, not here: the
// verifier would follow every value it can take.
struct sheet {
	struct plain_event *event;
	__u64 room;
};

// put copies len bytes, at most PLAIN_COPY, and returns how many it did: 0
// when the event is full or the bytes cannot be read.
static __always_inline __u32 put(struct sheet *sheet, const struct source *source, __u32 at,
				 __u32 len)
{
	struct plain_event *event;
	struct piece *piece;
	__u64 used, room, where;

	if (len > PLAIN_COPY)
		len = PLAIN_COPY;
	if (!sheet)
		return len; // lost: go on, so that the framing holds
	event = sheet->event;
	room = sheet->room;
	used = event->data_len;
	if (used + sizeof(*piece) >= room)
		return 0;
	if (!used || event->last_end != at) {
		where = used & (room - 1);
		piece = (struct piece *)(event->data + where);
		piece->at = at;
		piece->len = 0;
		event->last_piece = used;
		event->last_end = at;
		used += sizeof(*piece);
	}
	where = used & (room - 1);
	if (len == 0)
		return 0;
	if (load(source, at, event->data + where, len, PLAIN_COPY)) {
		count(REASON_CALL_UNREAD);
		return 0;
	}
	where = event->last_piece & (room - 1);
	piece = (struct piece *)(event->data + where);
	piece->len += len;
	event->last_end += len;
	event->data_len = used + len;
	return len;
}

// copied_payload is how much of a frame's payload the collector gets.
static __always_inline __u32 copied_payload(__u8 type, __u8 flags, __u32 length)
{
	__u32 most = length;

	if (type == H2_DATA)
		most = flags & FRAME_PADDED ? 1 : 0;
	else if (type == H2_PING || type > H2_CONTINUATION)
		most = 0;
	else if (type == H2_GOAWAY)
		most = 8;
	return most < length ? most : length;
}

// plausible says whether a frame header can be one: of a length that peers
// allow in practice, of a type near the known ones, and on a stream that its
// type goes with (RFC 9113 section 6). Else a call was missed, and with it
// where the frames begin.
static __always_inline bool plausible(const __u8 *header, __u32 length)
{
	bool stream = header[5] | header[6] | header[7] | header[8];
	__u8 type = header[3];

	if (length > FRAME_MOST || type > TYPE_MOST || header[5] & 0x80)
		return false;
	if (type == H2_SETTINGS || type == H2_PING || type == H2_GOAWAY)
		return !stream;
	return stream || type == H2_WINDOW_UPDATE || type > H2_CONTINUATION;
}

// whole_header takes a frame header that lies in one piece and what follows it,
// as far as one step can: a frame a step, as a rule.
static __always_inline __u32 whole_header(struct sheet *sheet, const struct source *source,
					  struct stream *stream, __u32 at, __u32 left)
{
	__u8 header[FRAME_HEADER];
	__u32 length, copy, n;

	if (load(source, at, header, FRAME_HEADER, FRAME_HEADER)) {
		count(REASON_CALL_UNREAD);
		return 0;
	}
	length = header[0] << 16 | header[1] << 8 | header[2];
	if (!plausible(header, length)) {
		count(REASON_FRAMING_LOST);
		stream->gap = GAP_AHEAD;
		return left; // the next call may begin with a frame
	}
	copy = copied_payload(header[3], header[4], length);
	n = FRAME_HEADER + copy;
	if (n > left)
		n = left;
	n = put(sheet, source, at, n);
	if (n < FRAME_HEADER)
		return 0;
	copy -= n - FRAME_HEADER;
	length -= n - FRAME_HEADER;
	if (!copy) {
		// The rest of the payload is not for the collector.
		left -= n;
		if (left > length)
			left = length;
		length -= left;
		n += left;
	}
	stream->copy = copy;
	stream->remain = length;
	return n;
}

// step_frame takes one step through an HTTP/2 stream. It returns the bytes it
// took, 0 when the event is full.
static __always_inline __u32 step_frame(struct sheet *sheet, const struct source *source,
					struct stream *stream, __u32 at, __u32 left)
{
	__u32 n;

	if (stream->copy) {
		n = stream->copy < left ? stream->copy : left;
		n = put(sheet, source, at, n);
		stream->copy -= n;
		stream->remain -= n;
		return n;
	}
	if (stream->remain) {
		n = stream->remain < left ? stream->remain : left;
		stream->remain -= n;
		return n;
	}
	if (!stream->have && left >= FRAME_HEADER)
		return whole_header(sheet, source, stream, at, left);
	// A header that two calls share.
	n = FRAME_HEADER - (stream->have & 15);
	if (n > left)
		n = left;
	if (n == 0)
		return 0;
	if (put(sheet, source, at, n) < n)
		return 0;
	if (load(source, at, &stream->header[stream->have & 7], n, FRAME_HEADER))
		return 0;
	stream->have += n;
	if (stream->have < FRAME_HEADER)
		return n;
	stream->have = 0;
	stream->remain = stream->header[0] << 16 | stream->header[1] << 8 | stream->header[2];
	stream->copy = copied_payload(stream->header[3], stream->header[4], stream->remain);
	return n;
}

#define WORD(a, b, c, d, e, f, g, h)                                                              \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 |  \
	 (__u64)(f) << 40 | (__u64)(g) << 48 | (__u64)(h) << 56)
#define LOWER 0x2020202020202020ULL
#define BYTES(n) (~0ULL >> (64 - 8 * (n)))

// is_method says whether a request begins with the eight bytes in word. A
// protocol that is like HTTP must not pass: its lines hold what HTTP has in its
// body. The methods are those of RFC 9110 section 9.3 and RFC 5789; those of
// other documents are not known.
static __always_inline bool is_method(__u64 word)
{
	return (word & BYTES(4)) == WORD('G', 'E', 'T', ' ', 0, 0, 0, 0) ||
	       (word & BYTES(5)) == WORD('P', 'O', 'S', 'T', ' ', 0, 0, 0) ||
	       (word & BYTES(4)) == WORD('P', 'U', 'T', ' ', 0, 0, 0, 0) ||
	       (word & BYTES(5)) == WORD('H', 'E', 'A', 'D', ' ', 0, 0, 0) ||
	       (word & BYTES(7)) == WORD('D', 'E', 'L', 'E', 'T', 'E', ' ', 0) ||
	       (word & BYTES(6)) == WORD('P', 'A', 'T', 'C', 'H', ' ', 0, 0) ||
	       (word & BYTES(6)) == WORD('T', 'R', 'A', 'C', 'E', ' ', 0, 0) ||
	       word == WORD('O', 'P', 'T', 'I', 'O', 'N', 'S', ' ') ||
	       word == WORD('C', 'O', 'N', 'N', 'E', 'C', 'T', ' ');
}

// begins_head checks the first bytes of what should be an HTTP/1 head and
// notes what kind it is.
static __always_inline bool begins_head(struct conn_state *state, struct stream *stream,
					const __u8 *first, __u32 len, bool request)
{
	struct stream *other;

	if (len < 12)
		return false;
	if (request) {
		if (!is_method(*(const __u64 *)first))
			return false;
		// Whatever of an answer the kernel could not tell the end of has
		// ended, unless requests are pipelined.
		other = &state->stream[state->role == ROLE_CLIENT ? DIR_IN : DIR_OUT];
		if (state->heads_in >= state->heads_out) {
			other->state = STREAM_HEAD;
			other->head_len = 0;
		}
		state->heads_out++;
		return true;
	}
	if (first[0] != 'H' || first[1] != 'T' || first[2] != 'T' || first[3] != 'P' ||
	    first[4] != '/' || first[5] != '1' || first[6] != '.')
		return false;
	stream->interim = first[9] == '1';
	stream->switching = stream->interim && first[10] == '0' && first[11] == '1';
	if (!stream->interim || stream->switching)
		state->heads_in++;
	return true;
}

static __always_inline void end_head(struct conn_state *state, struct stream *stream, bool request)
{
	stream->head_len = 0;
	stream->remain = 0;
	if (stream->body == BODY_LENGTH) {
		stream->remain = stream->length;
		stream->state = stream->remain ? STREAM_BODY : STREAM_HEAD;
	} else if (stream->body == BODY_CHUNKED) {
		stream->state = STREAM_UNTIL;
	} else {
		stream->state = request || stream->interim ? STREAM_HEAD : STREAM_UNTIL;
	}
	if (!request && stream->switching) {
		state->protocol = PROTO_OTHER;
		stream->state = STREAM_UNTIL;
	}
}

#define ONES 0x0101010101010101ULL
#define HIGHS 0x8080808080808080ULL

// Through memory: the verifier forgets how a value came about, and with it
// the many paths that it would else follow to the end one by one.
#define FORGET(field, value)                                                                      \
	({                                                                                        \
		*(volatile typeof(field) *)&(field) = (value);                                    \
		*(volatile typeof(field) *)&(field);                                              \
	})

// read_length reads the number of a Content-Length line (RFC 9110 section
// 8.6), after its 15 bytes of name and colon. Without branches, and so that the
// compiler makes none: each would double what the verifier has to follow.
static __always_inline __u32 read_length(const __u8 *line)
{
	__u32 number = 0, open = 1, begun = 0;

#pragma clang loop unroll(full)
	for (int i = 15; i < 28; i++) {
		__u32 digit = (__u8)(line[i] - '0');
		__u32 is = (digit - 10) >> 31; // 1 for a digit

		barrier_var(is);
		open &= is | (begun ^ 1);
		begun |= is;
		is &= open;
		barrier_var(is);
		number = number * (1 + 9 * is) + digit * is;
	}
	return number;
}

union line {
	__u64 word[LINE_CHUNK / 8];
	__u8 byte[LINE_CHUNK];
};

enum line_kind {
	LINE_PART,  // no line begins here
	LINE_FIELD, // any line
	LINE_CR,    // the CR of the empty line; its LF begins the next call
	LINE_EMPTY_LF,
	LINE_EMPTY_CRLF,
};

// begin_line looks at the beginning of a line and notes the length of the body
// where the line states it.
static __always_inline __u8 begin_line(struct stream *stream, const union line *line, __u32 n)
{
	__u64 first = line->word[0] | LOWER, second = line->word[1] | LOWER;

	if (line->byte[0] == '\n')
		return LINE_EMPTY_LF;
	if (line->byte[0] == '\r' && n == 1)
		return LINE_CR;
	if (line->byte[0] == '\r' && line->byte[1] == '\n')
		return LINE_EMPTY_CRLF;
	if (first == WORD('c', 'o', 'n', 't', 'e', 'n', 't', '-') &&
	    (second & ~(0xffULL << 56)) == WORD('l', 'e', 'n', 'g', 't', 'h', ':', 0)) {
		stream->body = BODY_LENGTH;
		stream->length = read_length(line->byte);
	} else if (first == WORD('t', 'r', 'a', 'n', 's', 'f', 'e', 'r') &&
		   second == WORD('-', 'e', 'n', 'c', 'o', 'd', 'i', 'n')) {
		stream->body = BODY_CHUNKED;
	}
	return LINE_FIELD;
}

// until_lf is how far the line goes, its LF included; 0 when it goes on.
static __always_inline __u32 until_lf(const union line *line)
{
	// Eight bytes at a time: x has the high bit of each byte that is an LF,
	// the sum counts the bytes up to the first.
	for (int i = 0; i < LINE_CHUNK / 8; i++) {
		__u64 x = line->word[i] ^ (ONES * '\n');

		x = (x - ONES) & ~x & HIGHS;
		if (x)
			return i * 8 + ((((x - 1) & ~x & ONES) * ONES) >> 56);
	}
	return 0;
}

// begins_anew says whether a write begins the next request, although the end
// of the last one's chunks was not recognized (trailers, or a last chunk in two
// writes): its answer has come whole, and a chunk does not begin with a method.
static __always_inline bool begins_anew(struct conn_state *state, struct stream *stream,
					const struct source *source)
{
	struct stream *answer = &state->stream[state->role == ROLE_CLIENT ? DIR_IN : DIR_OUT];
	__u64 word = 0;

	if (stream->body != BODY_CHUNKED || answer->state != STREAM_HEAD ||
	    state->heads_in < state->heads_out)
		return false;
	return !load(source, 0, &word, sizeof(word), sizeof(word)) && is_method(word);
}

// step_line takes one step through an HTTP/1 stream: a line of a head, 64
// bytes of a longer one, or all there is of a body.
static __always_inline __u32 step_line(struct sheet *sheet, const struct source *source,
				       struct conn_state *state, struct stream *stream, __u32 at,
				       __u32 left, bool request)
{
	__u32 n = left < LINE_CHUNK ? left : LINE_CHUNK, taken;
	union line line = {};
	__u8 kind;

	if (stream->state == STREAM_UNTIL) {
		if (!request || at || left < 12 || !begins_anew(state, stream, source))
			return left;
		stream->state = STREAM_HEAD;
		stream->head_len = 0;
	}
	if (stream->state == STREAM_BODY) {
		n = stream->remain < left ? stream->remain : left;
		stream->remain -= n;
		if (!stream->remain)
			stream->state = STREAM_HEAD;
		return n;
	}
	// What follows must not be undone because the event is full.
	if (sheet && sheet->event->data_len + 2 * sizeof(struct piece) >= sheet->room)
		return 0;
	if (n == 0)
		return 0;
	if (load(source, at, line.byte, n, LINE_CHUNK)) {
		count(REASON_CALL_UNREAD);
		return 0;
	}
	if (!stream->head_len) {
		if (!begins_head(state, stream, line.byte, left, request)) {
			stream->state = STREAM_UNTIL;
			count(REASON_NOT_HTTP);
			return left;
		}
		stream->body = BODY_NONE;
		stream->line_start = 0;
	}
	kind = FORGET(stream->kind, stream->line_start ? begin_line(stream, &line, n) : LINE_PART);
	taken = FORGET(stream->taken, kind >= LINE_CR ? kind - LINE_CR + !(kind - LINE_CR) : until_lf(&line));
	// A line that starts with what this one ends with.
	stream->line_start = taken && taken <= n;
	if (!taken || taken > n)
		taken = n;
	taken = FORGET(stream->taken, taken);
	n = put(sheet, source, at, taken);
	if (n < taken)
		return 0;
	stream->head_len += n;
	if (kind >= LINE_EMPTY_LF) {
		end_head(state, stream, request);
	} else if (stream->head_len > HEAD_MAX) {
		count(REASON_HEAD_LIMIT);
		stream->state = STREAM_UNTIL;
	}
	return n;
}

// passage is a stretch of plaintext and where it belongs.
struct passage {
	struct source source;
	__u32 bytes;
	__u32 seq_lo, seq_hi;
	__u32 pid, tid;
	__u64 now, enter;
};

// detect decides by a direction's first bytes what the connection speaks. An
// HTTP/2 server may speak first: its preface is a SETTINGS frame (RFC 9113
// section 3.4).
static __always_inline void detect(struct conn_state *state, struct stream *stream,
				   const struct source *source, __u32 bytes, bool request)
{
	__u64 first = 0;

	stream->begun = 1;
	if (bytes >= sizeof(first))
		load(source, 0, &first, sizeof(first), sizeof(first));
	if (request && first == WORD('P', 'R', 'I', ' ', '*', ' ', 'H', 'T')) {
		state->protocol = PROTO_HTTP2;
		stream->remain = stream->copy = PREFACE_LEN;
	}
	if (state->protocol != PROTO_UNKNOWN)
		return;
	if (!request && (first & 0xff) == 0 && (first >> 24 & 0xff) == H2_SETTINGS &&
	    first >> 40 == 0) {
		state->protocol = PROTO_HTTP2;
	} else if (!(first & 0xff) && (first >> 24 & 0xff) <= H2_CONTINUATION &&
		   !(first >> 40 & 0xff)) {
		// The connection was there before its first bytes could be read:
		// this looks like a frame of less than 64 KiB on a stream below
		// 2^24, and writers begin with one.
		state->protocol = PROTO_HTTP2;
		stream->gap = GAP_BEFORE;
		state->stream[!(stream - state->stream)].gap = GAP_BEFORE;
	} else if (first) {
		state->protocol = PROTO_HTTP1;
	} else {
		state->protocol = PROTO_OTHER;
		count(REASON_NOT_HTTP);
	}
}

static __always_inline bool ends_chunks(const struct source *source, __u32 bytes)
{
	__u8 last[5];

	if (bytes < sizeof(last) || load(source, bytes - sizeof(last), last, sizeof(last), sizeof(last)))
		return false;
	return last[0] == '0' && last[1] == '\r' && last[2] == '\n' && last[3] == '\r' &&
	       last[4] == '\n';
}

// scan_run is what the loops over one passage share.
struct scan_run {
	struct sheet sheet;
	const struct passage *passage;
	struct conn_state *state;
	struct stream *stream;
	__u64 dir;
	__u64 request;
};

// scan_step ends a step that took n bytes; it returns 1 when there is no
// further one.
static __always_inline long scan_step(struct scan_run *run, __u32 n)
{
	run->stream->taken = n;
	run->stream->at += n;
	return !n || run->stream->at >= run->passage->bytes;
}

// step_frames and step_lines take a step through what the connection speaks.
static __always_inline long step_frames(struct scan_run *run, struct sheet *sheet,
					const bool packet)
{
	struct source source = known(&run->passage->source, packet);
	__u32 at = run->stream->at, bytes = run->passage->bytes;

	if (at >= bytes)
		return 1;
	return scan_step(run, step_frame(sheet, &source, run->stream, at, bytes - at));
}

static __always_inline long step_lines(struct scan_run *run, struct sheet *sheet, const bool packet)
{
	struct source source = known(&run->passage->source, packet);
	__u32 at = run->stream->at, bytes = run->passage->bytes;

	if (at >= bytes)
		return 1;
	return scan_step(run, step_line(sheet, &source, run->state, run->stream, at, bytes - at,
					run->request));
}

// The loops' bodies: one for each protocol, since the verifier's work is the
// product of what a loop can do.

static long library_frames(__u32 index, struct scan_run *run)
{
	return step_frames(run, &run->sheet, false);
}

static long library_lines(__u32 index, struct scan_run *run)
{
	return step_lines(run, &run->sheet, false);
}

static long packet_frames(__u32 index, struct scan_run *run)
{
	return step_frames(run, &run->sheet, true);
}

static long packet_lines(__u32 index, struct scan_run *run)
{
	return step_lines(run, &run->sheet, true);
}

// RESERVE makes an event whose data has the given room.
#define RESERVE(room)                                                                             \
	bpf_ringbuf_reserve(&events,                                                              \
			    __builtin_offsetof(struct plain_event, data) + (room) + PLAIN_COPY, 0)

// reserve makes the next event, a small one where that is likely to do.
static __always_inline struct plain_event *reserve(struct scan_run *run)
{
	struct stream *stream = run->stream;
	__u32 bytes = run->passage->bytes;

	if (bytes <= SMALL_DATA / 2 || (stream->remain >= bytes - stream->at && !stream->copy) ||
	    run->state->protocol >= PROTO_OTHER) {
		run->sheet.room = SMALL_DATA;
		return RESERVE(SMALL_DATA);
	}
	if (bytes <= MIDDLE_DATA - SMALL_DATA / 4) {
		run->sheet.room = MIDDLE_DATA;
		return RESERVE(MIDDLE_DATA);
	}
	run->sheet.room = PLAIN_DATA;
	return RESERVE(PLAIN_DATA);
}

// begin_sheet notes where the event's plaintext belongs.
static __always_inline void begin_sheet(struct scan_run *run, struct plain_event *event)
{
	const struct passage *passage = run->passage;

	event->hdr.ts = passage->now;
	event->hdr.conn = run->state->conn;
	event->hdr.kind = KIND_PLAIN;
	event->hdr.dir = run->dir;
	event->enter = passage->enter;
	event->offset = run->stream->offset;
	event->bytes = passage->bytes;
	event->seq_lo = passage->seq_lo;
	event->seq_hi = passage->seq_hi;
	event->pid = passage->pid;
	event->tid = passage->tid;
}

static __always_inline void clear_sheet(struct scan_run *run, struct plain_event *event)
{
	run->stream->passes--;
	run->sheet.event = event;
	event->data_len = 0;
	event->last_piece = 0;
	event->last_end = 0;
}

// end_sheet completes the event. It returns 1 when the passage has ended.
static __always_inline long end_sheet(struct scan_run *run, struct plain_event *event,
				      const bool packet)
{
	struct source source = known(&run->passage->source, packet);
	__u16 flags = packet ? 0 : FLAG_TLS;
	__u32 bytes = run->passage->bytes;
	struct conn_state *state = run->state;
	struct stream *stream = run->stream;

	if (stream->gap == GAP_BEFORE)
		flags |= FLAG_GAP;
	if (stream->at < bytes) {
		if (!stream->passes || (!stream->taken && !event->data_len)) {
			flags |= FLAG_SHORT;
			count(REASON_SCAN_LIMIT);
		} else {
			flags |= FLAG_MORE;
		}
	} else if (state->protocol == PROTO_HTTP1 && stream->state == STREAM_UNTIL &&
		   stream->body == BODY_CHUNKED && ends_chunks(&source, bytes)) {
		flags |= FLAG_CHUNK_END;
		stream->state = STREAM_HEAD;
	}
	stream->gap = stream->gap == GAP_AHEAD ? GAP_BEFORE : GAP_NONE;
	event->hdr.lost = state->lost;
	event->hdr.flags = flags;
	event->protocol = state->protocol;
	return !(flags & FLAG_MORE);
}

// lost_sheet notes that there was no room for an event.
static __always_inline void lost_sheet(struct scan_run *run)
{
	count(REASON_RING_FULL);
	__sync_fetch_and_add(&run->state->lost, 1);
	run->stream->gap = GAP_BEFORE;
}

// The verifier follows a global function once, whatever calls it. But such a
// function takes numbers only, and has to find the rest in maps.

// GLOBAL_RUN declares run, for a global function's arguments.
#define GLOBAL_RUN(run, packet_or_null, conn_state, direction, where, length)                     \
	struct passage passage = {                                                                \
		.source = {.skb = (packet_or_null), .buffer = (where), .base = (where)},          \
		.bytes = (length),                                                                \
	};                                                                                        \
	struct scan_run run = {                                                                   \
		.sheet = {.room = PLAIN_DATA},                                                    \
		.passage = &passage,                                                              \
		.state = (conn_state),                                                            \
		.stream = &(conn_state)->stream[(direction) & 1],                                 \
		.dir = (direction),                                                               \
		.request = ((direction) == DIR_OUT) == ((conn_state)->role == ROLE_CLIENT),       \
	}

static __always_inline int lost_step(struct __sk_buff *skb, __u64 conn, __u32 dir, __u64 where,
				     __u32 bytes, const bool packet)
{
	struct conn_state *state = bpf_map_lookup_elem(&conns, &conn);

	if (!state)
		return 1;
	GLOBAL_RUN(run, skb, state, dir, where, bytes);
	if (state->protocol == PROTO_HTTP2)
		return step_frames(&run, NULL, packet);
	return step_lines(&run, NULL, packet);
}

// lost_step_library and lost_step_packet take a step without an event, so that
// the framing holds where the ring is full.
__noinline int lost_step_library(__u64 conn, __u32 dir, __u64 buffer, __u32 bytes)
{
	return lost_step(NULL, conn, dir, buffer, bytes, false);
}

__noinline int lost_step_packet(struct __sk_buff *skb, __u64 conn, __u32 dir, __u32 base,
				__u32 bytes)
{
	return lost_step(skb, conn, dir, base, bytes, true);
}

// lost_steps_library and lost_steps_packet go through what one event would hold.
__noinline int lost_steps_library(__u64 conn, __u32 dir, __u64 buffer, __u32 bytes)
{
	for (int i = 0; i < STEPS; i++)
		if (lost_step_library(conn, dir, buffer, bytes))
			break;
	return 0;
}

__noinline int lost_steps_packet(struct __sk_buff *skb, __u64 conn, __u32 dir, __u32 base,
				 __u32 bytes)
{
	for (int i = 0; i < STEPS; i++)
		if (lost_step_packet(skb, conn, dir, base, bytes))
			break;
	return 0;
}

static __always_inline long lost_pass(struct scan_run *run, const bool packet)
{
	const struct source *source = &run->passage->source;
	__u32 dir = run->dir, bytes = run->passage->bytes;
	__u8 protocol = run->state->protocol;
	__u64 conn = run->state->conn;

	lost_sheet(run);
	run->stream->passes--;
	if (protocol != PROTO_HTTP2 && protocol != PROTO_HTTP1)
		return 1;
	if (packet)
		lost_steps_packet(source->skb, conn, dir, source->base, bytes);
	else
		lost_steps_library(conn, dir, source->buffer, bytes);
	return run->stream->at >= bytes;
}

// scan_pass fills one event. Whether there is one is asked once: the verifier
// of Linux 6.1 takes a second check for one that can fail, and misses the event
// on that path.
static __always_inline long scan_pass(struct scan_run *run, const bool packet)
{
	struct plain_event *event = reserve(run);
	long ended;

	if (!event)
		return lost_pass(run, packet);
	begin_sheet(run, event);
	clear_sheet(run, event);
	if (run->state->protocol == PROTO_HTTP2)
		bpf_loop(STEPS, packet ? packet_frames : library_frames, run, 0);
	else if (run->state->protocol == PROTO_HTTP1)
		bpf_loop(STEPS, packet ? packet_lines : library_lines, run, 0);
	else
		run->stream->at = run->passage->bytes;
	ended = end_sheet(run, event, packet);
	run->sheet.event = NULL;
	run->sheet.room = 0;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return ended;
}

static long library_pass(__u32 index, struct scan_run *run)
{
	return scan_pass(run, false);
}

static long packet_pass(__u32 index, struct scan_run *run)
{
	return scan_pass(run, true);
}

// Before Linux 5.17 there is no bpf_loop(), and the verifier follows every turn
// of a loop: so the turn is a global function. It cannot be given an event of
// the ring buffer: the event is made in a map and copied.

static __always_inline struct plain_event *draft_of(struct __sk_buff *skb, __u32 dir,
						    const bool packet)
{
	struct segment_drafts *drafts;
	struct bpf_sock *sk;
	__u32 zero = 0;

	if (!packet)
		return bpf_map_lookup_elem(&library_draft, &zero);
	sk = skb->sk;
	if (!sk)
		return NULL;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return NULL;
	drafts = bpf_sk_storage_get(&socket_drafts, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!drafts)
		return NULL;
	return &drafts->event[dir & 1];
}

static __always_inline int old_step(struct __sk_buff *skb, __u64 conn, __u32 dir, __u64 where,
				    __u32 bytes, const bool packet)
{
	struct conn_state *state = bpf_map_lookup_elem(&conns, &conn);
	struct plain_event *event = draft_of(skb, dir, packet);

	if (!state || !event)
		return 1;
	GLOBAL_RUN(run, skb, state, dir, where, bytes);
	run.sheet.event = event;
	if (state->protocol == PROTO_HTTP2)
		return step_frames(&run, &run.sheet, packet);
	return step_lines(&run, &run.sheet, packet);
}

__noinline int old_step_library(__u64 conn, __u32 dir, __u64 buffer, __u32 bytes)
{
	return old_step(NULL, conn, dir, buffer, bytes, false);
}

__noinline int old_step_packet(struct __sk_buff *skb, __u64 conn, __u32 dir, __u32 base,
			       __u32 bytes)
{
	return old_step(skb, conn, dir, base, bytes, true);
}

static __always_inline int old_pass(struct __sk_buff *skb, __u64 conn, __u32 dir, __u64 where,
				    __u32 bytes, const bool packet)
{
	struct conn_state *state = bpf_map_lookup_elem(&conns, &conn);
	struct plain_event *event = draft_of(skb, dir, packet);
	__u32 len;
	int ended;

	if (!state || !event)
		return 1;
	GLOBAL_RUN(run, skb, state, dir, where, bytes);
	clear_sheet(&run, event);
	if (state->protocol == PROTO_HTTP2 || state->protocol == PROTO_HTTP1) {
		for (int i = 0; i < STEPS; i++)
			if (packet ? old_step_packet(skb, conn, dir, where, bytes) :
				     old_step_library(conn, dir, where, bytes))
				break;
	} else {
		run.stream->at = bytes;
	}
	ended = end_sheet(&run, event, packet);
	len = event->data_len;
	if (len > sizeof(event->data) ||
	    bpf_ringbuf_output(&events, event, __builtin_offsetof(struct plain_event, data) + len,
			       BPF_RB_NO_WAKEUP))
		lost_sheet(&run);
	return ended;
}

__noinline int old_pass_library(__u64 conn, __u32 dir, __u64 buffer, __u32 bytes)
{
	return old_pass(NULL, conn, dir, buffer, bytes, false);
}

__noinline int old_pass_packet(struct __sk_buff *skb, __u64 conn, __u32 dir, __u32 base,
			       __u32 bytes)
{
	return old_pass(skb, conn, dir, base, bytes, true);
}

static __always_inline void old_scan(struct scan_run *run, const bool packet)
{
	const struct source *source = &run->passage->source;
	__u32 dir = run->dir, bytes = run->passage->bytes;
	struct plain_event *event = draft_of(source->skb, dir, packet);
	__u64 conn = run->state->conn;

	if (!event) {
		count(REASON_STORAGE_FAILED);
		__sync_fetch_and_add(&run->state->lost, 1);
		return;
	}
	begin_sheet(run, event);
	for (int i = 0; i < PASSES; i++)
		if (packet ? old_pass_packet(source->skb, conn, dir, source->base, bytes) :
			     old_pass_library(conn, dir, source->buffer, bytes))
			break;
}

// scan reports one passage of plaintext, in as many events as its heads need.
// packet says which kind of source it has, old is for kernels without
// bpf_loop().
static __always_inline void scan(struct conn_state *state, enum direction dir,
				 const struct passage *passage, const bool packet, const bool old)
{
	struct source source = known(&passage->source, packet);
	struct stream *stream = &state->stream[dir & 1];
	struct scan_run run = {
		.passage = passage,
		.state = state,
		.stream = stream,
		.dir = dir,
		.request = (dir == DIR_OUT) == (state->role == ROLE_CLIENT),
	};

	stream->at = 0;
	stream->passes = PASSES;
	if (!stream->begun)
		detect(state, stream, &source, passage->bytes, run.request);
	if (old)
		old_scan(&run, packet);
	else
		bpf_loop(PASSES, packet ? packet_pass : library_pass, &run, 0);
	if (stream->gap || stream->at < passage->bytes) {
		// What is left of the frame would reach the collector without
		// its beginning.
		stream->copy = 0;
		if (stream->at < passage->bytes) {
			stream->gap = GAP_BEFORE;
			stream->remain = 0;
			stream->have = 0;
		}
	}
	stream->offset += passage->bytes;
}

// scan_segment reads plain HTTP off a packet, in order: what was seen before
// is passed over, a hole is a gap unless it lies within a body.
static __always_inline void scan_segment(struct __sk_buff *skb, struct socket_state *socket,
					 __u32 headers, __u32 len, __u32 seq, enum direction dir,
					 __u64 now, const bool old)
{
	struct conn_state *state = bpf_map_lookup_elem(&conns, &socket->conn);
	struct passage passage = {};
	struct stream *stream;
	__s32 ahead;

	if (!state)
		return;
	stream = &state->stream[dir & 1];
	if (!stream->begun)
		stream->next = seq;
	ahead = (__s32)(seq - stream->next);
	if (ahead < 0) {
		if ((__u32)-ahead >= len)
			return;
		headers += -ahead;
		len -= -ahead;
		seq = stream->next;
	} else if (ahead > 0) {
		stream->offset += ahead;
		if (stream->remain >= (__u32)ahead && !stream->copy) {
			stream->remain -= ahead;
			if (!stream->remain && state->protocol == PROTO_HTTP1)
				stream->state = STREAM_HEAD;
		} else if (stream->state != STREAM_UNTIL) {
			stream->gap = GAP_BEFORE;
			stream->remain = stream->copy = 0;
			stream->have = 0;
		}
	}
	stream->next = seq + len;
	passage.source.skb = skb;
	passage.source.base = headers;
	passage.bytes = len;
	passage.seq_lo = seq;
	passage.seq_hi = seq + len;
	passage.now = passage.enter = now;
	scan(state, dir, &passage, true, old);
}
