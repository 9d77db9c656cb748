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
  // Throws Error(usage), with the name of the verb, for values out of range.
  Normalizer settle(const char* verb, double otherwise = 1) const;

 private:
  std::optional<double> alpha_;
  std::optional<int64_t> top_k_;
};

}  // namespace keyhole::cli
