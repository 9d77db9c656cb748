// src/base/normalizer.cpp
// A Normalizer as text, and back.
#include "keyhole/normalizer.h"

#include <charconv>
#include <vector>

#include "base/check.h"

namespace keyhole {
namespace {

constexpr const char* kForms =
    "accepted are softmax, softmax(top=32), entmax(1.5) and entmax(1.5, top=8)";

std::string shortest(double number) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, number);
  return {text, end};
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

template <class Number>
Number number_of(std::string_view word, std::string_view whole) {
  Number number{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  KEYHOLE_CHECK(error == std::errc() && end == word.data() + word.size(), "normalizer \"", whole,
                "\": \"", word, "\" is not ", std::is_same_v<Number, double> ? "a" : "a whole",
                " number; ", kForms);
  return number;
}

// "name(a, b)" as its name and its arguments.
struct Call {
  std::string_view name;
  std::vector<std::string_view> arguments;
};
Call split(std::string_view whole) {
  const std::string_view text = trimmed(whole);
  const size_t open = text.find('(');
  if (open == std::string_view::npos) return {text, {}};
  KEYHOLE_CHECK(text.back() == ')', "normalizer \"", whole, "\" has no closing parenthesis; ",
                kForms);
  Call call{trimmed(text.substr(0, open)), {}};
  std::string_view rest = text.substr(open + 1, text.size() - open - 2);
  while (true) {
    const size_t comma = rest.find(',');
    call.arguments.push_back(trimmed(rest.substr(0, comma)));
    if (comma == std::string_view::npos) return call;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

void check_normalizer(const Normalizer& normalizer) {
  KEYHOLE_CHECK(normalizer.alpha >= 1 && normalizer.alpha <= 2, "attention: alpha is ",
                normalizer.alpha, "; accepted are 1 (softmax) to 2 (sparsemax)");
  KEYHOLE_CHECK(normalizer.top_k >= 0, "attention: top_k is ", normalizer.top_k,
                "; it must be positive, or 0 for all keys");
}

Normalizer softmax(int64_t top) { return entmax(1, top); }

Normalizer entmax(double alpha, int64_t top) {
  const Normalizer made{alpha, top};
  check_normalizer(made);
  return made;
}

std::string to_string(const Normalizer& normalizer) {
  const std::string top = normalizer.top_k != 0 ? say("top=", normalizer.top_k) : "";
  if (normalizer.alpha == 1) return top.empty() ? "softmax" : say("softmax(", top, ")");
  return say("entmax(", shortest(normalizer.alpha), top.empty() ? "" : ", ", top, ")");
}

Normalizer parse_normalizer(std::string_view text) {
  Call call = split(text);
  KEYHOLE_CHECK(call.name == "softmax" || call.name == "entmax", "normalizer \"", text,
                "\" is unknown; ", kForms);
  double alpha = 1;
  if (call.name == "entmax") {
    KEYHOLE_CHECK(!call.arguments.empty() && !call.arguments[0].empty(), "normalizer \"", text,
                  "\" has no alpha; ", kForms);
    alpha = number_of<double>(call.arguments[0], text);
    call.arguments.erase(call.arguments.begin());
  }
  int64_t top = 0;
  constexpr std::string_view kTop = "top=";
  if (!call.arguments.empty()) {
    KEYHOLE_CHECK(call.arguments.size() == 1 && call.arguments[0].starts_with(kTop),
                  "normalizer \"", text, "\": \"", call.arguments.back(), "\" is not understood; ",
                  kForms);
    top = number_of<int64_t>(call.arguments[0].substr(kTop.size()), text);
    KEYHOLE_CHECK(top > 0, "normalizer \"", text, "\": top is ", top,
                  "; it must be positive, or left out for all keys");
  }
  return entmax(alpha, top);
}

}  // namespace keyhole
