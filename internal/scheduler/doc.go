// Package scheduler is the scheduler's shell: watches, binds and events around core/placement.
package scheduler
