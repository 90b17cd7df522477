//go:build e2e

package hostile

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"testing"
)

// The size of the long form. Chosen: so many copies of an attack that they could fill every kind of limited slot, and
// so many rounds that the test takes about an hour. One agent runs through all attacks, so small leaks add up. -rounds
// and -attacks select more rounds of fewer attacks.
var (
	rounds = flag.Int("rounds", 1, "how often each attack comes in TestOneByOne")
	copies = flag.Int("copies", 3, "in how many times as many pods as in the short form")
	only   = flag.String("attacks", "",
		"regular expression for the names of the attacks that come; empty: all, in the short form but those that come alone")
	not = flag.String("without", "^$", "regular expression for the names of those that do not come")
)

// The short form: all attacks of one kind run at the same time.

func TestOnDisk(t *testing.T)      { allAtOnce(t, onDisk) }
func TestInProcesses(t *testing.T) { allAtOnce(t, inProcesses, inLogs, inProbes) }
func TestInObjects(t *testing.T)   { allAtOnce(t, inHooks, inObjects) }

func allAtOnce(t *testing.T, lists ...[]attack) {
	chosen := slices.DeleteFunc(asked(slices.Concat(lists...)), func(a attack) bool { return a.alone && *only == "" })
	if len(chosen) == 0 {
		t.Skip("none of these attacks was asked for")
	}
	begin(t).suffer(1, chosen...)
}

// asked returns the attacks that the flags select.
func asked(of []attack) (chosen []attack) {
	come, stay := regexp.MustCompile(*only), regexp.MustCompile(*not)
	for _, a := range of {
		if come.MatchString(a.name) && !stay.MatchString(a.name) {
			chosen = append(chosen, a)
		}
	}
	return chosen
}

// TestOneByOne is the long form.
func TestOneByOne(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("takes an hour: set PLIMSOLL_E2E_LONG")
	}
	for _, a := range asked(attacks) {
		t.Run(a.name, func(t *testing.T) {
			s := begin(t)
			for range *rounds {
				s.suffer(*copies, a)
			}
		})
	}
}
