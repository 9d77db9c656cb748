// tests/support/inputs.cpp
// Fills the tensors of a case with numbers of its regime.
#include "support/inputs.h"

#include "support/draw_numbers.h"

namespace keyhole::test {
namespace {

void fill(const Case& c, const AllowedPairs& allowed, Inputs& in) {
  const InputNumbers drawn = draw_numbers(c, allowed);
  const auto fill_one = [](PoisonedTensor& tensor, const Numbers& numbers) {
    tensor.fill([&](int64_t i) { return number_at(numbers, i); });
  };
  fill_one(in.q, drawn.q);
  fill_one(in.k, drawn.k);
  fill_one(in.v, drawn.v);
  fill_one(in.dout, drawn.dout);
  if (c.has_sink) fill_one(in.sink, drawn.sink);
}

void take_options(const Case& c, Inputs& in) {
  in.options.normalizer = c.normalizer;
  in.options.scale = c.scale;
  in.options.softcap = c.softcap;
  in.options.threads = c.threads;
  in.options.deterministic = true;
  if (c.has_sink) in.options.sink = in.sink.view();
}

}  // namespace

Inputs make_inputs(const Case& c, const AllowedPairs& allowed) {
  Inputs in;
  allocate(c, in);
  fill(c, allowed, in);
  take_options(c, in);
  seal(in);
  return in;
}

Inputs contiguous(const Case& c, const Inputs& inputs) {
  Inputs in;
  allocate(with_contiguous_layouts(c), in);
  in.q.fill([&](int64_t i) { return inputs.q.get(i); });
  in.k.fill([&](int64_t i) { return inputs.k.get(i); });
  in.v.fill([&](int64_t i) { return inputs.v.get(i); });
  in.dout.fill([&](int64_t i) { return inputs.dout.get(i); });
  if (c.has_sink) in.sink.fill([&](int64_t i) { return inputs.sink.get(i); });
  take_options(c, in);
  seal(in);
  return in;
}

Outputs make_outputs(const Case& c) {
  Outputs o;
  allocate(c, o);
  return o;
}

Outputs contiguous_outputs(const Case& c) { return make_outputs(with_contiguous_layouts(c)); }

}  // namespace keyhole::test
