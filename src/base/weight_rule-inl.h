// src/base/weight_rule-inl.h
// SoftmaxRule: the functions of the rule. No include guard, and included inside the caller's
// namespace: code for several instruction sets compiles it for each of them.

template <class Math, Bend kBend = Bend::either>
struct SoftmaxRule : RuleNumbers<typename Math::Real> {
  using Real = typename Math::Real;
  using Numbers = RuleNumbers<Real>;
  using Numbers::factor;
  using Numbers::inner;
  using Numbers::scale;

  static KEYHOLE_RULE SoftmaxRule of(const WeightRule& rule) { return {numbers_of<Math>(rule)}; }

  KEYHOLE_RULE bool is_bent() const {
    return kBend == Bend::softcap || (kBend == Bend::either && inner != 0);
  }

  // A kernel may apply fold_factor() to the rows of k or of q before the product. folded() is then
  // the rule for these products; steepness stays d score / d (q . k).
  KEYHOLE_RULE Real fold_factor() const { return is_bent() ? inner : factor; }
  KEYHOLE_RULE SoftmaxRule folded() const {
    return is_bent() ? SoftmaxRule{{Real(1), factor, scale}}
                     : SoftmaxRule{{Real(0), Real(1), scale}};
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
  // weight(score(bent), statistic) with one multiply-add and one power.
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
