package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

// forward copies every connection to listen to target, until it is killed.
func forward(listen, target string) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := join(conn, target); err != nil {
				fmt.Fprintf(os.Stderr, "guest: forward to %s: %v\n", target, err)
			}
		}()
	}
}

// join copies in both directions until both have ended. When one end stops sending, the other is informed.
func join(here net.Conn, target string) error {
	defer here.Close()
	there, err := net.Dial("tcp", target)
	if err != nil {
		return err
	}
	defer there.Close()
	back := make(chan error, 1)
	go func() { back <- pass(here, there) }()
	err = pass(there, here)
	if other := <-back; err == nil {
		err = other
	}
	return err
}

func pass(to, from net.Conn) error {
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if half, ok := to.(*net.TCPConn); ok {
		return half.CloseWrite()
	}
	return nil
}
