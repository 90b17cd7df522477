package volume

// Outcome is how a call ended.
type Outcome uint8

// The outcomes.
const (
	// Done: the driver did what was asked.
	Done Outcome = iota
	// Failed: the driver did not do it, and will not do it later because of this call.
	Failed
	// Unclear: the driver may have done it, may do so later, or not at all.
	Unclear
	// Unsent: the driver was not asked, for example because a secret is missing.
	Unsent
	// Infeasible is Failed for an Expand that will fail in the same way until another size is asked for.
	Infeasible
)

// Code is a gRPC status code (google.rpc.Code).
type Code uint32

// The codes that leave open what became of a call, and those that make an expansion pointless.
const (
	codeOK                Code = 0
	codeCanceled          Code = 1
	codeInvalidArgument   Code = 3
	codeDeadlineExceeded  Code = 4
	codeNotFound          Code = 5
	codeResourceExhausted Code = 8
	codeAborted           Code = 10
	codeOutOfRange        Code = 11
	codeUnavailable       Code = 14
)

// OutcomeOf returns the outcome of a call that a driver, or the connection to it, answered with code. Which codes leave
// it open is upstream's isFinalError: the call was cancelled, ran out of time, did not reach the driver for certain, or
// another call for the volume is on its way (Aborted). Which codes make an expansion infeasible is upstream's
// IsInfeasibleError.
func OutcomeOf(verb Verb, code Code) Outcome {
	switch code {
	case codeOK:
		return Done
	case codeCanceled, codeDeadlineExceeded, codeUnavailable, codeResourceExhausted, codeAborted:
		return Unclear
	case codeInvalidArgument, codeOutOfRange, codeNotFound:
		if verb == Expand {
			return Infeasible
		}
	}
	return Failed
}

// after returns the State that a call leaves which should make it Yes (forth) or No. A call that certainly failed does
// not make a State certain that an earlier call left uncertain.
func after(before State, forth bool, outcome Outcome) State {
	switch {
	case outcome == Unsent:
		return before
	case outcome == Done && forth:
		return Yes
	case outcome == Done:
		return No
	case outcome == Unclear:
		return Uncertain
	case forth:
		return before
	}
	return Uncertain // a driver that fails to take it away may have taken some of it away
}
