package suite

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Wire sees every request of a client and can cut all of its connections.
type Wire struct {
	mutex    sync.Mutex
	requests []*http.Request
	open     []net.Conn
}

// Tap puts a Wire under a copy of a config.
func Tap(config *rest.Config) (*rest.Config, *Wire) {
	wire, config := &Wire{}, rest.CopyConfig(config)
	config.Dial = wire.dial
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &tapped{wire: wire, next: next} })
	return config, wire
}

func (w *Wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.open = append(w.open, conn)
	}
	return conn, err
}

// Cut closes every connection that was opened so far, without a farewell.
func (w *Wire) Cut() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, conn := range w.open {
		_ = conn.Close()
	}
	w.open = nil
}

// Connections counts what was opened since the last cut.
func (w *Wire) Connections() int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return len(w.open)
}

// Count gives the number of requests whose method and URL hold both texts.
func (w *Wire) Count(method, text string) int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	count := 0
	for _, request := range w.requests {
		if request.Method == method && strings.Contains(request.URL.String(), text) {
			count++
		}
	}
	return count
}

type tapped struct {
	wire *Wire
	next http.RoundTripper
}

func (t *tapped) RoundTrip(request *http.Request) (*http.Response, error) {
	t.wire.mutex.Lock()
	t.wire.requests = append(t.wire.requests, request)
	t.wire.mutex.Unlock()
	return t.next.RoundTrip(request)
}

// WrappedRoundTripper lets client-go find the transport underneath.
func (t *tapped) WrappedRoundTripper() http.RoundTripper { return t.next }
