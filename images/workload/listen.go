package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"strconv"
)

// listen opens TCP and UDP ports. A TCP client receives the port's address and is disconnected; a UDP packet is sent
// back.
func listen(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	var tcp, udp ports
	flags.Var(&tcp, "tcp", "TCP ports")
	flags.Var(&udp, "udp", "UDP ports")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	if len(tcp)+len(udp) == 0 {
		return usagef("want --tcp or --udp ports")
	}
	failed := make(chan error, len(tcp)+len(udp))
	for _, port := range tcp {
		listener, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		defer listener.Close()
		p.printf("listening on tcp %s\n", listener.Addr())
		go func() {
			failed <- accept(listener, func(c net.Conn) { io.WriteString(c, c.LocalAddr().String()+"\n") })
		}()
	}
	for _, port := range udp {
		socket, err := net.ListenPacket("udp", ":"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		defer socket.Close()
		p.printf("listening on udp %s\n", socket.LocalAddr())
		go func() { failed <- answer(socket) }()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// echo sends every byte of every TCP connection back.
func echo(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	port := flags.Int("port", 7, "TCP port")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(*port))
	if err != nil {
		return err
	}
	defer listener.Close()
	context.AfterFunc(ctx, func() { listener.Close() })
	p.printf("echoing on %s\n", listener.Addr())
	return accept(listener, func(c net.Conn) { io.Copy(c, c) })
}

// accept serves connections until the listener is closed. Errors of a connection are ignored.
func accept(listener net.Listener, serve func(net.Conn)) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

func answer(socket net.PacketConn) error {
	packet := make([]byte, 64<<10) // a UDP datagram is at most 65,507 bytes
	for {
		n, from, err := socket.ReadFrom(packet)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := socket.WriteTo(packet[:n], from); err != nil {
			return err
		}
	}
}
