package topology

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// entries returns n texts joined by commas.
func entries(n int, format func(i int) string) string {
	out := make([]string, 0, n)
	for i := range n {
		out = append(out, format(i))
	}
	return strings.Join(out, ",")
}

const (
	hostileStart = `{"apiVersion":"plimsoll.dev/v1alpha1","kind":"Machine","spec":{`
	hostileEnd   = `"filesystems":{"nodefs":{"capacity":"1Gi"}}}}`
	oneNode      = `"numaNodes":[{"id":0,"cpus":"0-4095","memory":"1Gi"}],`
)

func eachCPU(format string) string {
	return entries(cpusMax, func(i int) string { return fmt.Sprintf(format, i) })
}

// hostileObjects are objects that a node could publish to cost a scheduler far more than their length suggests. The key
// says what they repeat.
func hostileObjects() map[string][6]string {
	machine := func(spec string) [6]string {
		return [6]string{"none", "container", hostileStart + spec + hostileEnd, `{}`, `[]`, `[]`}
	}
	with := func(k int, text string) [6]string {
		o := machine(oneNode)
		o[k] = text
		return o
	}
	nodes := entries(1024, func(i int) string { return fmt.Sprintf(`{"id":%d,"cpus":"%d","memory":"1Mi"}`, i, i*8) })
	return map[string][6]string{
		"nothing": machine(oneNode),
		"cores":   machine(oneNode + `"threadSiblings":[` + eachCPU(`"%d"`) + `],`),
		"sockets": machine(oneNode + `"sockets":{` + eachCPU(`"%[1]d":"%[1]d"`) + `},`),
		"same sets": machine(oneNode + `"threadSiblings":[` + entries(cpusMax, func(int) string { return `"0-4095"` }) +
			`],`),
		"same dies": machine(oneNode + `"dies":[` + entries(cpusMax, func(int) string { return `"0-4095"` }) + `],`),
		"nodes":     machine(`"numaNodes":[` + nodes + `],`),
		"nodes cores": machine(`"numaNodes":[` + nodes + `],"sockets":{` + entries(1024,
			func(i int) string { return fmt.Sprintf(`"%d":"%d"`, i, i*8) }) + `},`),
		"bare nodes": machine(`"numaNodes":[` + entries(1023,
			func(i int) string { return fmt.Sprintf(`{"id":%d,"memory":"1"}`, i+1) }) + `,{"id":0,"cpus":"0","memory":"1"}],`),
		"same nodes": machine(`"numaNodes":[` + entries(30000, func(int) string { return `{"id":0,"cpus":"0"}` }) + `],`),
		"page sizes": machine(`"numaNodes":[` + entries(100, func(i int) string {
			return fmt.Sprintf(`{"id":%d,"memory":"1Gi","cpus":"%d","hugepages":{`, i, i) + entries(50,
				func(k int) string { return fmt.Sprintf(`"%d":1`, uint64(1)<<k) }) + `}}`
		}) + `],`),
		"unknown":  machine(entries(50000, func(i int) string { return fmt.Sprintf(`"x%d":1`, i) }) + `,`),
		"brackets": with(2, strings.Repeat("[", 500000)),
		"aliases":  with(2, "a: &a [x,x,x,x,x,x,x,x,x]\n"+aliases(9)),
		"pods": with(5, `[`+entries(20000,
			func(i int) string { return fmt.Sprintf(`{"uid":"%d","containers":[{"name":"c"}]}`, 1000000-i) })+`]`),
		"pods of CPUs": with(5, `[`+entries(8192,
			func(i int) string { return fmt.Sprintf(`{"uid":"%d","containers":[{"name":"c","cpus":"%d"}]}`, i, i) })+`]`),
		"same CPUs": with(5, `[`+entries(10000,
			func(i int) string { return fmt.Sprintf(`{"uid":"%d","containers":[{"name":"c","cpus":"0-8191"}]}`, i) })+`]`),
		"containers": with(5, `[{"uid":"p","containers":[`+entries(10000,
			func(int) string { return `{"name":"c","cpus":"0-8191"}` })+`]}]`),
		"blocks": with(5, `[{"uid":"p","containers":[{"name":"c","memory":[`+entries(20000,
			func(int) string { return `{"nodes":[0],"bytes":1}` })+`]}]}]`),
		"block nodes": with(5, `[{"uid":"p","containers":[{"name":"c","memory":[{"nodes":[`+entries(200000,
			func(int) string { return `0` })+`],"bytes":1}]}]}]`),
		"devices of pods": with(5, `[`+entries(10000, func(i int) string {
			return fmt.Sprintf(`{"uid":"%d","containers":[{"name":"c","devices":{"r%d":["a"]}}]}`, i, i)
		})+`]`),
		"resources": with(4, `[`+entries(10000,
			func(i int) string { return fmt.Sprintf(`{"resource":"r%d","devices":[{"ids":["a"]}]}`, 1000000-i) })+`]`),
		"devices": with(4, `[{"resource":"r","devices":[`+entries(20000,
			func(i int) string { return fmt.Sprintf(`{"ids":["%d"],"nodes":[0]}`, i) })+`]}]`),
		"same devices": with(4, `[{"resource":"r","devices":[{"ids":[`+entries(100000, func(i int) string { return `"a"` })+
			`],"nodes":[0]}]}]`),
		"options": with(3, `{"cpu":{"options":[`+entries(100000, func(int) string { return `""` })+`]}}`),
		"reserved": with(3, `{"memory":{`+entries(30000, func(i int) string { return fmt.Sprintf(`"%d":{"":1}`, i) })+
			`}}`),
	}
}

// aliases is YAML with n lists, each of which contains the previous one nine times.
func aliases(n int) string {
	var b strings.Builder
	for i := range n {
		name := string(rune('a' + i))
		fmt.Fprintf(&b, "%c: &%c [%s]\n", 'a'+i+1, 'a'+i+1, strings.TrimSuffix(strings.Repeat("*"+name+",", 9), ","))
	}
	return b.String()
}

// TestHostileObjects: the cost of reading a node's object is in proportion to its length.
func TestHostileObjects(t *testing.T) {
	for name, said := range hostileObjects() {
		t.Run(name, func(t *testing.T) {
			length := 0
			for _, text := range said {
				length += len(text)
			}
			// The largest machine that is read takes 12 MB and 25 ms. Its description is YAML to its reader, which
			// costs 500 ns a byte.
			cost.Under(t, cost.Budget{Bytes: 48 << 20, BytesPerByte: 256, CPU: 250 * time.Millisecond,
				CPUPerByte: 3 * time.Microsecond}, length, func() {
				if _, err := Decode(object(said), nil); err != nil && len(err.Error()) > 64<<10 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
			})
		})
	}
}

func object(said [6]string) *Object {
	o := &Object{}
	for i, name := range []string{attributePolicy, attributeScope, attributeMachine, attributeConfig, attributePlugins,
		attributePods} {
		o.Attributes = append(o.Attributes, Attribute{Name: name, Value: said[i]})
	}
	return o
}
