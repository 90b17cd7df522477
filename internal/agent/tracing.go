package agent

import (
	"context"
	"log/slog"

	"github.com/plimsoll-dev/plimsoll/internal/agent/tracing"
)

// prepareTracing prepares the spans that the configuration asks for. It comes before everything that has spans.
func (a *Agent) prepareTracing(ctx context.Context) (err error) {
	a.tracing, err = tracing.New(ctx, a.o.Config.Tracing, a.o.NodeName)
	return err
}

// closeTracing sends the spans that have ended.
func (a *Agent) closeTracing() {
	if err := a.tracing.Close(context.Background()); err != nil {
		slog.Warn("spans are lost", "err", err)
	}
}
