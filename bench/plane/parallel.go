package plane

import "sync"

// requesters is how many requests make and delete objects in parallel. Chosen: enough to keep the API server busy.
const requesters = 32

// Parallel calls do for 0 to n-1, several calls at a time, and returns the first error.
func Parallel(n int, do func(int) error) error {
	turns := make(chan int)
	var group sync.WaitGroup
	var once sync.Once
	var first error
	for range requesters {
		group.Go(func() {
			for i := range turns {
				if err := do(i); err != nil {
					once.Do(func() { first = err })
				}
			}
		})
	}
	for i := range n {
		turns <- i
	}
	close(turns)
	group.Wait()
	return first
}
