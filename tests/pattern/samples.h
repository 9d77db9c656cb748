// tests/pattern/samples.h
// Every pattern the laws are tried on: all sample texts of the catalog, and what has no text
// (lambda) or whose arrays are too long to be written; each for the shapes it can be resolved for.
#pragma once

#include <string>
#include <vector>

#include "keyhole/pattern.h"

namespace keyhole::test {

std::vector<Pattern> sample_patterns();

// One head of one batch entry of one shape.
struct SampleView {
  std::string text;
  Shape shape;
  NodePtr node;
};
std::vector<SampleView> sample_views();

}  // namespace keyhole::test
