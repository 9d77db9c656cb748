// src/base/entmax-inl.h
// EntmaxRule: weight and slope of a score. No include guard, and included inside the caller's
// namespace: code for several instruction sets compiles it for each of them.

template <class Number>
struct EntmaxTerms {
  Number weight, slope;
};

template <class Math>
struct EntmaxRule {
  using Real = typename Math::Real;
  Real bend;        // alpha - 1
  Real power;       // r
  int whole;        // r as a whole number, or 0
  bool is_softmax;  // alpha = 1

  static KEYHOLE_RULE EntmaxRule of(const EntmaxPower& given) {
    return {Real(given.bend), Real(given.power), given.whole, given.bend == 0};
  }

  // distance: score - lambda.
  template <class Number>
  KEYHOLE_RULE EntmaxTerms<Number> terms(Number distance) const {
    if (is_softmax) {
      const Number weight = Math::exp(distance);
      return {weight, weight};
    }
    const Number bent = Math::times(distance, bend);
    const Number x = Math::at_least_0(Math::one_plus(bent));
    if (whole == 1) return {x, Math::one_if_positive(x)};
    if (whole == 0) {
      const Number weight = Math::power_of_one_plus(bent, Math::all(power));
      return {weight, Math::quotient_or_0(weight, x)};
    }
    const Number square = Math::product(x, x);
    if (whole == 2) return {square, x};
    if (whole == 3) return {Math::product(square, x), square};
    return {Math::product(square, square), Math::product(square, x)};
  }
};
