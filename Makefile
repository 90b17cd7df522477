# `make` lists the targets. Everything a new machine lacks is installed by `make deps` (Debian, root).
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
STAMP := $(shell git describe --always --dirty 2>/dev/null)
LDFLAGS := -s -w -X github.com/plimsoll-dev/plimsoll/internal/version.stamp=$(STAMP)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

.PHONY: build
build: bin/plimsoll bin/plimsoll-controlplane ## build bin/plimsoll and bin/plimsoll-controlplane

.PHONY: bin/plimsoll
bin/plimsoll:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/plimsoll

.PHONY: bin/plimsoll-controlplane
bin/plimsoll-controlplane:
	cd controlplane && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o ../$@ .

.PHONY: test-unit
test-unit: ## run the tests that need no root and no control plane
	$(GO) test -race ./...
