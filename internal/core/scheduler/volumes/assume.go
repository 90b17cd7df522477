package volumes

import "fmt"

// Assume makes the changes that a plan will write visible to all decisions. Later facts from the API replace them.
func (s *Store) Assume(p *Plan) {
	for i := range p.Bind {
		b := &p.Bind[i]
		v := s.volumes[b.Volume]
		if b.Done || v == nil {
			continue
		}
		after := *v
		after.Claimed = true
		after.ClaimNamespace = b.ClaimNamespace
		after.ClaimName = b.ClaimName
		after.ClaimUID = b.ClaimUID
		s.setVolume(b.Volume, &after)
		s.apiVolumes[b.Volume] = v
	}
	for i := range p.Provision {
		q := &p.Provision[i]
		k := s.claims[q.key()]
		if q.Done || k == nil || k.Seen == nil {
			continue
		}
		before, after := k.Seen, *k.Seen
		after.Selected, after.Node = true, q.Node
		s.setClaim(k.Key, &after)
		s.apiClaims[k.Key] = before
	}
}

// Revert undoes what is still assumed of a plan: the facts are those of the API again. It returns what it reverted.
func (s *Store) Revert(p *Plan) (volumes []*KnownVolume, claims []ClaimKey) {
	for i := range p.Bind {
		if v := s.apiVolumes[p.Bind[i].Volume]; v != nil && v.Version == p.Bind[i].Version {
			delete(s.apiVolumes, v.Name)
			s.setVolume(v.Name, v)
			volumes = append(volumes, v)
		}
	}
	for i := range p.Provision {
		key := p.Provision[i].key()
		if k := s.apiClaims[key]; k != nil && k.Version == p.Provision[i].Version {
			delete(s.apiClaims, key)
			s.setClaim(key, k)
			claims = append(claims, key)
		}
	}
	return volumes, claims
}

func (b *Bind) key() ClaimKey { return ClaimKey{Namespace: b.ClaimNamespace, Name: b.ClaimName} }

func (q *ProvisionFor) key() ClaimKey { return ClaimKey{Namespace: q.Namespace, Name: q.Name} }

// APIVolume returns a volume as the API has it, without assumptions; nil: there is none.
func (s *Store) APIVolume(name string) *KnownVolume {
	if v := s.apiVolumes[name]; v != nil {
		return v
	}
	return s.volumes[name]
}

// APIClaim returns a claim as the API has it, without assumptions; nil: there is none.
func (s *Store) APIClaim(key ClaimKey) *Claim {
	if k := s.apiClaims[key]; k != nil {
		return k
	}
	if k := s.claims[key]; k != nil {
		return k.Seen
	}
	return nil
}

// Check reports whether everything in a plan for a node is bound, as the API has it. why says, in upstream's words, why
// it will never be.
func (s *Store) Check(p *Plan, at Place) (done bool, why string) {
	for i := range p.Bind {
		if bound, why := s.checkBind(&p.Bind[i], at); !bound {
			return false, why
		}
	}
	for i := range p.Provision {
		if made, why := s.checkProvision(&p.Provision[i], at); !made {
			return false, why
		}
	}
	return true, ""
}

func (s *Store) checkBind(b *Bind, at Place) (done bool, why string) {
	v, claim := s.APIVolume(b.Volume), s.APIClaim(b.key())
	switch {
	case v == nil:
		return false, fmt.Sprintf("failed to check binding: persistentvolume %q not found", b.Volume)
	case claim == nil:
		return false, fmt.Sprintf("failed to check binding: persistentvolumeclaim %q not found",
			b.ClaimNamespace+"/"+b.ClaimName)
	case !b.Done && v.Version == b.Version:
		return false, "" // the watch has not shown the write of the plan yet
	case !s.Reaches(v, at):
		return false, noAccess(v, at)
	case v.ClaimUID == "":
		return false, fmt.Sprintf("ClaimRef got reset for pv %q", v.Name)
	}
	return claim.Volume != "" && claim.Bound, ""
}

func (s *Store) checkProvision(q *ProvisionFor, at Place) (done bool, why string) {
	claim := s.APIClaim(q.key())
	switch {
	case claim == nil:
		return false, fmt.Sprintf("failed to check provisioning pvc: persistentvolumeclaim %q not found",
			q.Namespace+"/"+q.Name)
	case !q.Done && claim.Version == q.Version:
		return false, ""
	case !claim.Selected || claim.Node != q.Node:
		return false, fmt.Sprintf("provisioning failed for PVC %q", q.Name) // the provisioner rejected the node
	case claim.Volume == "":
		return false, ""
	}
	v := s.APIVolume(claim.Volume)
	switch {
	case v == nil:
		return false, "" // the event of the volume comes later
	case !s.Reaches(v, at):
		return false, noAccess(v, at)
	}
	return claim.Bound, ""
}

func noAccess(v *KnownVolume, at Place) string {
	return fmt.Sprintf("pv %q node affinity doesn't match node %q: no matching NodeSelectorTerms", v.Name, at.Name)
}
