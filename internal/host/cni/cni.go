// Package cni is a CNI plugin for host ports. It runs after the plugin that assigns a pod's address.
//
// The protocol is the CNI specification 1.0.0: the command and the container's ID in the environment, the configuration
// with the previous plugin's result on stdin, a result or an error as JSON on stdout. A pod without host ports costs
// one start of a small program. DEL does not fail for what is already removed.
//
// The package implements only the protocol; package nat implements host ports in the kernel.
package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/plimsoll-dev/plimsoll/internal/host/nat"
)

// Type is the plugin's name in a configuration list, and the name of its file.
const Type = "plimsoll-hostport"

// A Config is the part of the configuration that the plugin reads.
type Config struct {
	Version string `json:"cniVersion"`
	Bridge  string `json:"bridge"` // the name of the nftables table
	Runtime struct {
		Ports []portMapping `json:"portMappings"`
	} `json:"runtimeConfig"`
	Previous json.RawMessage `json:"prevResult"`
}

type portMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// kernel is package nat; tests replace it.
type kernel struct {
	open  func(bridge, owner string, ports []nat.Port) error
	close func(bridge, owner string) error
}

// Run executes one call and returns the exit code.
func Run(getenv func(string) string, in io.Reader, out io.Writer) int {
	return run(getenv, in, out, kernel{nat.Open, nat.Close})
}

// Error codes of the specification.
const (
	codeBadEnvironment = 4
	codeBadConfig      = 7
	codeFailed         = 999 // the specification reserves 100 and above for plugins
)

type codedError struct {
	code int
	error
}

func run(getenv func(string) string, in io.Reader, out io.Writer, k kernel) int {
	var config Config
	result, err := answer(getenv, in, &config, k)
	if err == nil {
		_, err = out.Write(result)
	}
	if err == nil {
		return 0
	}
	code := codeFailed
	if coded := (codedError{}); errors.As(err, &coded) {
		code = coded.code
	}
	text, marshalErr := json.Marshal(map[string]any{"cniVersion": config.Version, "code": code, "msg": Type + ": " +
		err.Error()})
	if marshalErr == nil {
		out.Write(text) // an error means that the caller is gone
	}
	return 1
}

func answer(getenv func(string) string, in io.Reader, config *Config, k kernel) ([]byte, error) {
	command := getenv("CNI_COMMAND")
	if command == "VERSION" {
		return []byte(`{"cniVersion":"1.0.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0"]}`), nil
	}
	if err := json.NewDecoder(in).Decode(config); err != nil {
		return nil, codedError{codeBadConfig, fmt.Errorf("read configuration: %w", err)}
	}
	owner := getenv("CNI_CONTAINERID")
	if owner == "" {
		return nil, codedError{codeBadEnvironment, errors.New("CNI_CONTAINERID is not set")}
	}
	switch command {
	case "ADD":
		return config.Previous, add(*config, owner, k)
	case "DEL":
		return nil, k.close(config.Bridge, owner)
	case "CHECK", "STATUS", "GC":
		return nil, nil
	}
	return nil, codedError{codeBadEnvironment, fmt.Errorf("CNI_COMMAND %q: want ADD, DEL, CHECK or VERSION", command)}
}

func add(config Config, owner string, k kernel) error {
	if len(config.Runtime.Ports) == 0 {
		return nil
	}
	pod, err := podAddress(config.Previous)
	if err != nil {
		return codedError{codeBadConfig, err}
	}
	var ports []nat.Port
	for _, m := range config.Runtime.Ports {
		if m.HostPort == 0 {
			continue
		}
		port := nat.Port{Protocol: m.Protocol, HostPort: m.HostPort, Pod: pod, PodPort: m.ContainerPort}
		if m.HostIP != "" {
			if port.HostIP, err = netip.ParseAddr(m.HostIP); err != nil {
				return codedError{codeBadConfig, fmt.Errorf("host port %d: hostIP %q: want an IP address", m.HostPort, m.HostIP)}
			}
			if port.HostIP.Is6() { // a mapping for IPv6 clients; pods of this network have no IPv6
				continue
			}
		}
		ports = append(ports, port)
	}
	// An earlier ADD may have failed half-way at another plugin.
	if err := k.close(config.Bridge, owner); err != nil {
		return err
	}
	return k.open(config.Bridge, owner, ports)
}

// podAddress returns the first IPv4 address in the previous plugin's result.
func podAddress(previous json.RawMessage) (netip.Addr, error) {
	var result struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(previous, &result); err != nil {
		return netip.Addr{}, fmt.Errorf("prevResult: %w", err)
	}
	for _, ip := range result.IPs {
		if prefix, err := netip.ParsePrefix(ip.Address); err == nil && prefix.Addr().Is4() {
			return prefix.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("prevResult: no IPv4 address: list this plugin after the one that assigns addresses")
}
