// tests/support/gpu/check_on_gpu.cpp
// All runs and questions of a kernel are queued one after the other; the host waits once, for the
// verdicts.
#include "support/gpu/check_on_gpu.h"

#include "runtime/dispatch.h"
#include "runtime/gpu.h"
#include "support/gpu/fill.h"
#include "support/gpu/gpu_case.h"
#include "support/gpu/judge.h"
#include "support/laws.h"
#include "support/on_gpu.h"

namespace keyhole::test {
namespace {

OutputsOnGpu outputs_of(const Case& c) {
  OutputsOnGpu o;
  allocate(c, o);
  return o;
}

// One kernel pair on one case.
class Trial {
 public:
  // backward_tile: {0, 0} for the library's choice; kernel.tile is that of the forward kernel
  Trial(GpuCase& prepared, const KernelChoice& kernel, TileShape backward_tile)
      : case_(prepared), kernel_(kernel), backward_tile_(backward_tile) {}

  void forward(const Case& c, const Plan& plan, const InputsOnGpu& in, const OutputsOnGpu& o) {
    const KernelEntry& kernel = *kernel_.forward;
    const TileShape tile = tile_for(kernel, plan, kernel_.tile, c);
    ForwardArgs args = forward_args_of(c, views_of(in, o), kernel_.shared_bytes);
    const int64_t bytes = forward_workspace_on_gpu(kernel, plan, tile, args);
    const WorkspaceOnGpu workspace(bytes);
    args.launch.workspace = workspace.data(), args.launch.workspace_bytes = bytes;
    run_forward(kernel, plan, tile, args);
    judge_.expect_no_damage(workspace);
  }
  void backward(const InputsOnGpu& in, const OutputsOnGpu& o, bool is_deterministic) {
    const KernelEntry& kernel =
        kernel_or_next(*kernel_.backward, case_.c, case_.made, views_of(in, o),
                       kernel_.shared_bytes, is_deterministic);
    const TileShape tile = tile_for(kernel, case_.made, backward_tile_, case_.c);
    BackwardArgs args = backward_args_of(case_.c, views_of(in, o), kernel_.shared_bytes);
    args.schedule = schedule_of(kernel, case_.made, tile, args, is_deterministic);
    const int64_t bytes = backward_workspace_on_gpu(kernel, case_.made, tile, args);
    const WorkspaceOnGpu workspace(bytes);
    args.launch.workspace = workspace.data(), args.launch.workspace_bytes = bytes;
    run_backward(kernel, case_.made, tile, args);
    judge_.expect_no_damage(workspace);
  }
  void both(const InputsOnGpu& in, const OutputsOnGpu& o) {
    forward(case_.c, case_.made, in, o);
    if (kernel_.backward) backward(in, o, /*is_deterministic=*/true);
  }

  void expect_no_damage(const OutputsOnGpu& o) {
    const InputsOnGpu& in = case_.in();
    for (const auto& [name, tensor] : {std::pair{"q", &in.q},
                                       {"k", &in.k},
                                       {"v", &in.v},
                                       {"dout", &in.dout},
                                       {"sink", &in.sink},
                                       {"out", &o.out},
                                       {"lse", &o.lse},
                                       {"dq", &o.dq},
                                       {"dk", &o.dk},
                                       {"dv", &o.dv},
                                       {"dsink", &o.dsink}}) {
      judge_.expect_no_damage(name, *tensor);
    }
  }
  void expect_forward(const OutputsOnGpu& o) {
    const GpuBounds& bounds = case_.bounds(kernel_.forward->rounds_weights);
    const GpuReference& want = case_.want();
    expect("forward", "lse", o.lse, want.lse, bounds.lse);
    expect("forward", "out", o.out, want.out, bounds.out);
  }
  void expect_gradients(const OutputsOnGpu& o) {
    // The backward pass starts from an output of the forward kernel's accuracy.
    const GpuBounds& bounds = case_.bounds(kernel_.forward->rounds_weights);
    const GpuReference& want = case_.want();
    expect("backward", "dv", o.dv, want.dv, bounds.dv);
    expect("backward", "dk", o.dk, want.dk, bounds.dk);
    expect("backward", "dq", o.dq, want.dq, bounds.dq);
    expect("backward", "dsink", o.dsink, want.dsink, bounds.dsink);
  }
  void expect_same_bits(const char* kind, const OutputsOnGpu& a, const OutputsOnGpu& b) {
    judge_.expect_same_bits(kind, "out", a.out, b.out);
    judge_.expect_same_bits(kind, "lse", a.lse, b.lse);
    if (!kernel_.backward) return;
    judge_.expect_same_bits(kind, "dq", a.dq, b.dq);
    judge_.expect_same_bits(kind, "dk", a.dk, b.dk);
    judge_.expect_same_bits(kind, "dv", a.dv, b.dv);
    judge_.expect_same_bits(kind, "dsink", a.dsink, b.dsink);
  }
  // A law that needs a second run on something equivalent, drawn from the seed as in laws.cpp.
  void check_law(const OutputsOnGpu& plain_out) {
    switch (case_.c.data / 8 % 16) {
      case 3:
        return check_reload(plain_out);
      case 4:
      case 5:
      case 6:
        return check_repeated_heads(plain_out);
      default:
        return;
    }
  }
  Judge& judge() { return judge_; }

 private:
  void expect(const char* kind, const char* name, const PoisonedOnGpu& got,
              const GpuArray<double>& want, const GpuBounds::Of& bounds) {
    judge_.expect_values(kind, name, got, {want.get(), bounds.bound.get(), bounds.plain.get()});
  }

  void check_reload(const OutputsOnGpu& plain_out) {
    const Case c = with_contiguous_layouts(case_.c);
    const Plan loaded = reloaded(case_.made, c.data);
    again_ = outputs_of(c);
    forward(c, loaded, case_.contiguous_in(), again_);
    judge_.expect_same_bits("reload", "out", plain_out.out, again_.out);
    judge_.expect_same_bits("reload", "lse", plain_out.lse, again_.lse);
  }
  void check_repeated_heads(const OutputsOnGpu& plain_out) {
    const InputsOnGpu& in = case_.contiguous_in();
    Case c = with_contiguous_layouts(case_.c);
    const int64_t group = c.heads / c.kv_heads;
    c.kv_heads = c.heads;
    InputsOnGpu repeated;
    allocate(c, repeated);
    copy_on_gpu(repeated.q.view(), in.q.view());
    repeat_heads_on_gpu(repeated.k.view(), in.k.view(), group);
    repeat_heads_on_gpu(repeated.v.view(), in.v.view(), group);
    if (c.has_sink) copy_on_gpu(repeated.sink.view(), in.sink.view());
    again_ = outputs_of(c);
    forward(c, case_.made, repeated, again_);
    judge_.expect_same_bits("repeated heads", "out", plain_out.out, again_.out);
    judge_.expect_same_bits("repeated heads", "lse", plain_out.lse, again_.lse);
  }

  GpuCase& case_;
  const KernelChoice& kernel_;
  const TileShape backward_tile_;
  Judge judge_;
  OutputsOnGpu again_;  // of the law: judges look at it until the verdict
};

}  // namespace

Failure check_on_gpu(const Case& c, const KernelChoice& wanted, CheckStats& stats) {
  GpuCase& prepared = prepared_on_gpu(c);
  KernelChoice kernel = wanted;
  kernel.tile = tile_for(*kernel.forward, prepared.made, wanted.tile, c);
  if (const auto text = prepared.compare_plan(kernel.tile); !text.empty()) return {"plan", text};
  stats.pairs += prepared.reference_in().num_pairs();

  const OutputsOnGpu o = outputs_of(prepared.c);
  const CallTensors tensors = views_of(prepared.in(), o);
  if (const auto why = why_refused(*kernel.forward, c, tensors, kernel.shared_bytes);
      !why.empty()) {
    stats.refused.add(why);  // another kernel would run instead; it has its own turn
    return {};
  }
  if (kernel.backward != nullptr &&
      !why_refused(*kernel.backward, c, tensors, kernel.shared_bytes).empty()) {
    kernel.backward = nullptr;
  }
  ++stats.kernel_runs;
  Trial trial(prepared, kernel, wanted.tile);
  trial.both(prepared.in(), o);
  trial.expect_no_damage(o);
  trial.judge().expect_empty_rows(prepared.reference_in(), o.out, o.lse,
                                  kernel.backward ? o.dq.view() : TensorView{});
  trial.expect_forward(o);
  const OutputsOnGpu unordered = outputs_of(prepared.c);
  if (kernel.backward) {
    trial.expect_gradients(o);
    // The fast route, whose sums have no fixed order.
    trial.forward(prepared.c, prepared.made, prepared.in(), unordered);
    trial.backward(prepared.in(), unordered, /*is_deterministic=*/false);
    trial.expect_no_damage(unordered);
    trial.expect_gradients(unordered);
  }
  Case counting = with_contiguous_layouts(prepared.c);
  counting.has_sink = false;
  const OutputsOnGpu counted = outputs_of(counting);
  trial.forward(counting, prepared.made, prepared.count_in(), counted);
  trial.judge().expect_counts(prepared.reference_in(), counted.lse);

  const OutputsOnGpu again = outputs_of(prepared.c);
  trial.both(prepared.in(), again);
  trial.expect_same_bits("rerun", o, again);
  const OutputsOnGpu plain_out = outputs_of(with_contiguous_layouts(prepared.c));
  trial.both(prepared.contiguous_in(), plain_out);
  trial.expect_same_bits("layout", o, plain_out);
  trial.check_law(plain_out);
  return trial.judge().verdict(&stats.worst);
}

}  // namespace keyhole::test
