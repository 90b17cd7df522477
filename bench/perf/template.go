package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"text/template"

	"sigs.k8s.io/yaml"
)

// arithmetic is the functions for templates. Numbers are Go numbers or text.
var arithmetic = template.FuncMap{
	"AddFloat":      func(n ...any) (float64, error) { return fold(n, func(a, b float64) float64 { return a + b }) },
	"AddInt":        whole(func(a, b float64) float64 { return a + b }),
	"SubtractFloat": func(n ...any) (float64, error) { return fold(n, func(a, b float64) float64 { return a - b }) },
	"SubtractInt":   whole(func(a, b float64) float64 { return a - b }),
	"MultiplyFloat": func(n ...any) (float64, error) { return fold(n, func(a, b float64) float64 { return a * b }) },
	"MultiplyInt":   whole(func(a, b float64) float64 { return a * b }),
	"DivideFloat":   func(n ...any) (float64, error) { return fold(n, func(a, b float64) float64 { return a / b }) },
	"DivideInt":     whole(func(a, b float64) float64 { return a / b }),
	"Mod": func(a, b any) (int, error) {
		x, err := float(a)
		if err != nil {
			return 0, err
		}
		y, err := float(b)
		if err != nil || int(y) == 0 {
			return 0, fmt.Errorf("%v modulo %v: %w", a, b, err)
		}
		return int(x) % int(y), nil
	},
}

// whole is fold with the result truncated to a whole number.
func whole(do func(a, b float64) float64) func(...any) (int, error) {
	return func(n ...any) (int, error) {
		f, err := fold(n, do)
		if err == nil && (math.IsInf(f, 0) || math.IsNaN(f)) {
			err = fmt.Errorf("%v: divided by zero", n)
		}
		return int(f), err
	}
}

// fold applies do from left to right.
func fold(numbers []any, do func(a, b float64) float64) (out float64, err error) {
	for i, n := range numbers {
		f, err := float(n)
		if err != nil {
			return 0, err
		}
		if i == 0 {
			out = f
			continue
		}
		out = do(out, f)
	}
	return out, nil
}

func float(n any) (float64, error) {
	switch v := n.(type) {
	case int:
		return float64(v), nil
	case float64:
		return v, nil
	case string:
		return strconv.ParseFloat(v, 64)
	}
	return 0, fmt.Errorf("%v: %T is no number", n, n)
}

// templates caches parsed files.
type templates struct{ parsed sync.Map }

// make executes the template in a file for the object with this index of count objects, and decodes the result into
// out. An unknown field is an error.
func (t *templates) make(path string, index, count int, out any) error {
	parsed, ok := t.parsed.Load(path)
	if !ok {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		p, err := template.New(path).Funcs(arithmetic).Option("missingkey=error").Parse(string(text))
		if err != nil {
			return err
		}
		parsed, _ = t.parsed.LoadOrStore(path, p)
	}
	var text bytes.Buffer
	if err := parsed.(*template.Template).Execute(&text, map[string]any{"Index": index, "Count": count}); err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(text.Bytes(), out); err != nil {
		return fmt.Errorf("read %s, filled in for %d of %d: %w", path, index, count, err)
	}
	return nil
}
