package identity

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/nodecert"
	"github.com/plimsoll-dev/plimsoll/internal/kube/certrequest"
)

// checkIssued returns the pair of an issued certificate and its key, if it is of use.
func checkIssued(chain, key []byte, now time.Time) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		err = fmt.Errorf("the certificate that was issued: %w", err)
		return nil, &certrequest.Failure{Cause: nodecert.Unusable, Err: err,
			Help: "the signer must sign the key of the request"}
	}
	if now.After(pair.Leaf.NotAfter) {
		return nil, &certrequest.Failure{
			Cause: nodecert.Unusable,
			Err: fmt.Errorf("the certificate that was issued expired at %s, and this machine's clock is at %s",
				pair.Leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)),
			Help: "set the clock of this machine, or of the machine where kube-controller-manager runs",
		}
	}
	if now.Before(pair.Leaf.NotBefore) {
		slog.Warn("a certificate was issued that is not valid yet by this machine's clock; check the clock",
			"begins", pair.Leaf.NotBefore.UTC(), "now", now.UTC())
	}
	return &pair, nil
}
