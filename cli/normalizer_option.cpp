// cli/normalizer_option.cpp
#include "cli/normalizer_option.h"

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "cli/common.h"

namespace keyhole::cli {

void NormalizerOption::add_to(CLI::App& app, double otherwise) {
  app.add_option(
         "--alpha", alpha_,
         fmt::format("1: softmax; up to 2: alpha-entmax, where most keys get a weight of 0; "
                     "default: {}",
                     otherwise))
      ->type_name("A");
  add_integer(app, "--top-k", top_k_, "only the keys with the K largest scores; default: all");
}

Normalizer NormalizerOption::settle(const char* verb, double otherwise) const {
  const double alpha = alpha_.value_or(otherwise);
  KEYHOLE_CHECK(alpha >= 1 && alpha <= 2, verb, ": --alpha is ", alpha,
                "; accepted are numbers from 1 (softmax) to 2 (sparsemax), such as 1.5");
  KEYHOLE_CHECK(!top_k_ || *top_k_ >= 1, verb, ": --top-k is ", top_k_.value_or(0),
                "; it must be at least 1; leave it out for all keys");
  return {.alpha = alpha, .top_k = top_k_.value_or(0)};
}

std::string NormalizerOption::text_of(const Normalizer& normalizer) {
  std::string text;
  if (normalizer.alpha != 1) text += fmt::format(" --alpha {}", normalizer.alpha);
  if (normalizer.top_k > 0) text += fmt::format(" --top-k {}", normalizer.top_k);
  return text;
}

}  // namespace keyhole::cli
