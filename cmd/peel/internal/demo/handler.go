package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// What a request may ask for, as header fields. Durations are as Go writes
// them.
const (
	delayField  = "X-Demo-Delay"  // before the first byte of the answer
	chunksField = "X-Demo-Chunks" // of a streamed answer
	gapField    = "X-Demo-Gap"    // before each chunk
)

const (
	maxChunks = 1000
	maxBody   = 1 << 20
	modelName = "stand-in-1"
)

// handler serves the API. The last element of a path may be a request's id.
func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", models)
	mux.HandleFunc("GET /v1/models/{id}", models)
	mux.HandleFunc("POST /v1/messages", messages)
	mux.HandleFunc("POST /v1/messages/{id}", messages)
	mux.HandleFunc("/v1/stream", stream)
	mux.HandleFunc("/v1/stream/{id}", stream)
	return &received{next: mux}
}

// received reads each request to its end, marks that, and waits as asked.
type received struct{ next http.Handler }

func (h *received) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := connFrom(r.Context())
	http1 := r.ProtoMajor == 1 && c != nil // the tap finds HTTP/2's requests itself
	if http1 {
		c.began()
	}
	_, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody))
	if http1 {
		c.received(requestID(r.URL.Path))
	}
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	delay, err := duration(r.Header, delayField)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if sleep(r.Context(), delay) != nil {
		return // the client has gone
	}
	h.next.ServeHTTP(w, r)
}

// models answers with a list of one model.
func models(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]any{
		"data":     []any{map[string]any{"type": "model", "id": modelName, "display_name": "Stand-in"}},
		"has_more": false,
	})
}

// messages answers with one JSON object, or with a stream where the client
// accepts one.
func messages(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		stream(w, r)
		return
	}
	answer(w, message("end_turn", []any{map[string]any{"type": "text", "text": "Here is the answer."}}))
}

func message(stop any, content []any) map[string]any {
	return map[string]any{
		"id": "msg_demo", "type": "message", "role": "assistant", "model": modelName,
		"content": content, "stop_reason": stop,
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// An error here is a client that has gone; its record shows that.
	_ = json.NewEncoder(w).Encode(v)
}

// stream answers with server-sent events: the start and a ping at once, each
// chunk after the gap, and the end.
func stream(w http.ResponseWriter, r *http.Request) {
	gap, err := duration(r.Header, gapField)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	chunks := 1
	if text := r.Header.Get(chunksField); text != "" {
		if chunks, err = strconv.Atoi(text); err != nil || chunks < 0 || chunks > maxChunks {
			http.Error(w, fmt.Sprintf("%s: want a number from 0 to %d, not %q", chunksField, maxChunks, text), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	flush := http.NewResponseController(w).Flush
	send := func(kind string, data map[string]any) error {
		data["type"] = kind
		text, err := json.Marshal(data)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, text)
		return err
	}
	err = errors.Join(
		send("message_start", map[string]any{"message": message(nil, []any{})}),
		send("ping", map[string]any{}),
		flush(),
	)
	for i := range chunks {
		if err != nil || sleep(r.Context(), gap) != nil {
			return // the client has gone
		}
		err = errors.Join(
			send("content_block_delta", map[string]any{
				"index": 0,
				"delta": map[string]any{"type": "text_delta", "text": fmt.Sprintf("word %d ", i+1)},
			}),
			flush(),
		)
	}
	_ = send("message_stop", map[string]any{}) // as above
}

// duration reads a field that holds one; 0 where there is none.
func duration(h http.Header, name string) (time.Duration, error) {
	text := h.Get(name)
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxDelay {
		return 0, fmt.Errorf("%s: want a duration from 0s to %s, not %q", name, maxDelay, text)
	}
	return d, nil
}
