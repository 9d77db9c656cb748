// src/base/weight_rule-inl.h
// SoftmaxRule: the rule in the few numbers that a loop keeps. Without an include guard and inside the
// namespace of whoever includes it: code for several instruction sets compiles it for each of them.

template <class Math, Bend kBend = Bend::either>
struct SoftmaxRule {
  using Real = typename Math::Real;
  Real inner;   // tanh takes inner * product; 0: no softcap
  Real factor;  // score = factor * bent
  Real scale;   // d score / d product in base e, where nothing is bent

  static SoftmaxRule of(const WeightRule& rule) {
    if (!rule.has_softcap()) return {Real(0), Real(rule.scale * Math::kLogE), Real(rule.scale)};
    return {Real(rule.scale / rule.softcap * Math::kTanhScale), Real(rule.softcap * Math::kLogE),
            Real(rule.scale)};
  }

  KEYHOLE_RULE bool is_bent() const {
    return kBend == Bend::softcap || (kBend == Bend::either && inner != 0);
  }

  template <class Number>
  KEYHOLE_RULE Number bend(Number product) const {
    if (!is_bent()) return product;
    return Math::tanh(Math::times(product, inner));
  }
  template <class Number>
  KEYHOLE_RULE Number score(Number bent) const {
    return Math::times(bent, factor);
  }
  template <class Number>
  KEYHOLE_RULE Number weight(Number score, Number statistic) const {
    return Math::power(Math::minus(score, statistic));
  }
  // weight(score(bent), statistic) by one multiply-add and one power.
  template <class Number>
  KEYHOLE_RULE Number weight_of_bent(Number bent, Number minus_statistic) const {
    return Math::power(Math::times_plus(bent, factor, minus_statistic));
  }
  // d weight / d score, in base e.
  template <class Number>
  KEYHOLE_RULE Number slope(Number weight) const {
    return weight;
  }
  // d score / d product, in base e.
  template <class Number>
  KEYHOLE_RULE Number steepness(Number bent) const {
    if (!is_bent()) return Math::all(scale);
    return Math::times(Math::one_minus_square(bent), scale);
  }
};
