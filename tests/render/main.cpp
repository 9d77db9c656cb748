// tests/render/main.cpp
// keyhole_lambda_picture LENGTH: the lambda of docs/patterns.md, as SVG. `keyhole show` cannot draw
// it, because a lambda has no text form. scripts/patterns_doc.py runs this, and shows `drawn` as it
// is written here.
#include <cstdio>
#include <cstdlib>

#include "keyhole/pattern.h"
#include "render/picture.h"
#include "render/svg.h"

int main(int count, char** words) {
  using namespace keyhole;
  if (count != 2) {
    std::fprintf(stderr, "usage: keyhole_lambda_picture LENGTH\n");
    return 2;
  }
  const Pattern drawn = lambda([](Position q, Position k) { return (q & k) == k; }, "(q & k) == k");

  const int64_t length = std::strtoll(words[1], nullptr, 10);
  const Shape shape = {.q_len = length, .k_len = length};
  std::fputs(picture_svg(look(drawn, shape, 0, 0, kSvgCells)).c_str(), stdout);
}
