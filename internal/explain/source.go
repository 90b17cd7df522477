package explain

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// A Source is the journal of a component: the scheduler's, the lifecycle controller's, or any that was copied.
type Source struct {
	Name string // for people: a path or an address
	Ask  func(ctx context.Context, q journal.Query) (journal.Answer, error)

	// explain asks a component that may watch the cluster; nil: it is a file.
	explain func(ctx context.Context, q url.Values) ([]byte, error)
}

// FileSource is a journal on this machine: a file, or a directory.
func FileSource(path string) Source {
	return Source{
		Name: path,
		Ask:  func(_ context.Context, q journal.Query) (journal.Answer, error) { return journal.Read(path, q) },
	}
}

// askTime bounds how long one component may take for its answer. Chosen: as long as its server may take.
const askTime = 30 * time.Second

// URLSource is the journal of a component with an HTTPS port. It is asked with the identity of config. caFile verifies
// the component's certificate; empty: config's CA does.
func URLSource(address string, config *rest.Config, caFile string) (Source, error) {
	at, err := url.Parse(address)
	switch {
	case err != nil:
		return Source{}, fmt.Errorf("%q: %w", address, err)
	case at.Scheme != "https" || at.Host == "":
		return Source{}, fmt.Errorf("%q: want https://HOST:PORT", address)
	case at.Path != "" && at.Path != "/" && at.Path != journal.Path:
		return Source{}, fmt.Errorf("%q: want https://HOST:PORT, without a path: the journal is at %s", address, journal.Path)
	}
	own := rest.CopyConfig(config)
	if caFile != "" {
		own.CAFile, own.CAData = caFile, nil
	}
	own.ServerName = ""
	client, err := rest.HTTPClientFor(own)
	if err != nil {
		return Source{}, fmt.Errorf("%q: %w", address, err)
	}
	client.Timeout = askTime
	to := func(path string, q url.Values) string {
		return (&url.URL{Scheme: at.Scheme, Host: at.Host, Path: path, RawQuery: q.Encode()}).String()
	}
	return Source{Name: at.Host, explain: func(ctx context.Context, q url.Values) ([]byte, error) {
		return get(ctx, client, to(Path, q))
	}, Ask: func(ctx context.Context, q journal.Query) (journal.Answer, error) {
		body, err := get(ctx, client, to(journal.Path, q.Parameters()))
		if err != nil {
			if strings.Contains(err.Error(), "x509: ") && caFile == "" {
				err = fmt.Errorf("%w: --journal-ca names the CA of its certificate", err)
			}
			return journal.Answer{}, err
		}
		return journal.ReadAnswer(body, q)
	}}, nil
}

// statusError is an answer with another status than 200.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// get returns the body of an answer with status 200.
func get(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, journal.AnswerMax))
	if err == nil && response.StatusCode != http.StatusOK {
		err = &statusError{response.StatusCode, response.Status + ": " + oneLine(string(body[:min(len(body), 500)]))}
	}
	return body, err
}
