package console

import (
	"embed"
	"net/http"
	"path"
)

//go:embed assets
var assets embed.FS

// types are the media types of the page's files.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// routes returns the handler, without the guard.
func (h *hub) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { asset(w, "index.html") })
	mux.HandleFunc("GET /{file}", func(w http.ResponseWriter, r *http.Request) { asset(w, r.PathValue("file")) })
	mux.HandleFunc("GET /events", h.events)
	mux.HandleFunc("POST /look", h.look)
	mux.HandleFunc("POST /try/pod", h.tryPod)
	mux.HandleFunc("POST /try/threshold", h.tryThreshold)
	return mux
}

// asset answers with a file of the page.
func asset(w http.ResponseWriter, name string) {
	text, err := assets.ReadFile(path.Join("assets", path.Base(name)))
	if err != nil {
		http.Error(w, "there is no such file", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", types[path.Ext(name)])
	_, _ = w.Write(text) // an error means that the page is gone
}
