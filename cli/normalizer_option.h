// cli/normalizer_option.h
// --alpha and --top-k: how the scores of a query become its weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "keyhole/normalizer.h"

namespace CLI {
class App;
}

namespace keyhole::cli {

class NormalizerOption {
 public:
  // otherwise: the alpha of a call that does not say.
  void add_to(CLI::App& app, double otherwise = 1);
  // As typed: " --alpha 1.5 --top-k 8", or nothing.
  static std::string text_of(const Normalizer& normalizer);
  // Error(usage), in the name of the verb, for numbers that are none.
  Normalizer settle(const char* verb, double otherwise = 1) const;
  bool is_given() const { return alpha_.has_value() || top_k_.has_value(); }

 private:
  std::optional<double> alpha_;
  std::optional<int64_t> top_k_;
};

}  // namespace keyhole::cli
