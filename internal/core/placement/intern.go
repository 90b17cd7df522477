package placement

// An interner gives each distinct string a small number, so that rules compare numbers. It never forgets: label keys and
// values, and the values selectors name, are few beside the pods that use them.
type interner struct {
	ids   map[string]int32
	texts []string
}

func newInterner() *interner { return &interner{ids: map[string]int32{}} }

func (in *interner) id(s string) int32 {
	if id, ok := in.ids[s]; ok {
		return id
	}
	id := int32(len(in.texts))
	in.ids[s] = id
	in.texts = append(in.texts, s)
	return id
}

func (in *interner) text(id int32) string { return in.texts[id] }
