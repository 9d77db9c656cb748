// course/03_flash_fast/timeline.cpp [events]
// Who does what when, on one SM, in steps 5 to 7: two warpgroups of 64 queries each share the
// tensor cores and the unit for exponentials. A simulation by arithmetic, without any waiting for
// memory; no GPU is needed. With "events": the table that figure.py draws.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

// Clocks of one warpgroup that has the unit for itself, for 128 keys.
constexpr int kProduct = 64 * 128 * 128 / 2048;  // scores; output takes as long
constexpr int kExponentials = 64 * 128 / 16;     // all that is left of softmax in step 7
constexpr int kClassic = 64 * 128 / 64 + kExponentials + 64 * 128 / 128;  // maxima, rescaling

struct Task {
  int group, tile;
  char kind;  // q: scores; s: softmax; v: output
  int left;   // half clocks, because two may share a unit
  std::vector<int> after;
  int issued = -1, begin = -1, end = -1;
};

struct Schedule {
  const char* step;
  bool meets;      // all threads meet after each tile
  int head_start;  // of warpgroup 0, in clocks
  bool overlaps;   // softmax runs beside the output of the tile before, in turns
  int softmax;
};
const Schedule kSchedules[] = {{"5", true, 0, false, kClassic},
                               {"6", false, 600, false, kClassic},
                               {"7", false, 0, true, kExponentials}};

constexpr int kGroups = 2;
int number(int group, int tile, char kind) {
  return (tile * kGroups + group) * 3 + (kind == 'q' ? 0 : kind == 's' ? 1 : 2);
}

std::vector<Task> tasks_of(const Schedule& schedule, int tiles) {
  std::vector<Task> tasks;
  for (int tile = 0; tile < tiles; ++tile) {
    for (int group = 0; group < kGroups; ++group) {
      const auto of = [&](int back, char kind) { return number(group, tile - back, kind); };
      Task scores = {group, tile, 'q', 2 * kProduct, {}};
      Task softmax = {group, tile, 's', 2 * schedule.softmax, {of(0, 'q')}};
      Task output = {group, tile, 'v', 2 * kProduct, {of(0, 's')}};
      if (schedule.overlaps) {  // scores of a tile and output of the one before: issued together
        if (tile > 0) scores.after.push_back(of(1, 's'));
        if (tile > 1) scores.after.push_back(of(2, 'v'));
        if (tile > 0) output.after.push_back(of(1, 'v'));
      } else if (tile > 0) {
        scores.after.push_back(of(1, 'v'));
        if (schedule.meets) scores.after.push_back(number(1 - group, tile - 1, 'v'));
      }
      for (const Task& task : {scores, softmax, output}) tasks.push_back(task);
    }
  }
  return tasks;
}

// Clock by clock. Returns the clock at which everything is done.
int run(const Schedule& schedule, std::vector<Task>& tasks) {
  for (int clock = 0;; ++clock) {
    std::vector<Task*> products, softmaxes;
    bool is_done = true;
    for (Task& task : tasks) {
      if (task.end >= 0) continue;
      is_done = false;
      const bool is_ready = std::all_of(task.after.begin(), task.after.end(), [&](int before) {
        return tasks[std::size_t(before)].end >= 0;
      });
      const bool may_start = task.tile > 0 || task.group == 0 || clock >= schedule.head_start;
      if (!is_ready || !may_start) continue;
      if (task.issued < 0) task.issued = clock;
      (task.kind == 's' ? softmaxes : products).push_back(&task);
    }
    if (is_done) return clock;
    if (schedule.overlaps && products.size() > 1) {  // in turns: one after the other, as issued
      const auto order = [](const Task* a, const Task* b) {
        return a->issued != b->issued ? a->issued < b->issued
               : a->group != b->group ? a->group < b->group
                                      : a->kind < b->kind;  // scores before output
      };
      products = {*std::min_element(products.begin(), products.end(), order)};
    }
    for (const std::vector<Task*>& sharing : {products, softmaxes}) {
      for (Task* task : sharing) {
        if (task->begin < 0) task->begin = clock;
        task->left -= sharing.size() == 1 ? 2 : 1;
        if (task->left <= 0) task->end = clock + 1;
      }
    }
  }
}

// One letter for 128 clocks: what the warpgroup's products, or its threads, do in their middle.
std::string letters(const std::vector<Task>& tasks, int group, bool of_threads) {
  std::string line(48, '.');
  for (const Task& task : tasks) {
    if (task.group != group || (task.kind == 's') != of_threads) continue;
    for (int i = 0; i < int(line.size()); ++i) {
      if (task.begin <= 128 * i + 64 && 128 * i + 64 < task.end) line[std::size_t(i)] = task.kind;
    }
  }
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  const bool wants_events = argc > 1 && std::strcmp(argv[1], "events") == 0;
  if (wants_events) std::printf("step warpgroup tile kind begin end\n");
  for (const Schedule& schedule : kSchedules) {
    const int tiles = 32;
    std::vector<Task> tasks = tasks_of(schedule, tiles);
    const int clocks = run(schedule, tasks);
    for (const Task& task : tasks) {
      if (!wants_events || task.tile > 3) continue;
      std::printf("%s %d %d %c %d %d\n", schedule.step, task.group, task.tile, task.kind,
                  task.begin, task.end);
    }
    if (wants_events) continue;
    std::printf("step %s: %.0f clocks a tile, tensor cores busy %.0f %% of the time\n",
                schedule.step, double(clocks) / tiles, 100.0 * tiles * 4 * kProduct / clocks);
    for (int group = 0; group < kGroups; ++group) {
      std::printf("  warpgroup %d products %s\n", group, letters(tasks, group, false).c_str());
      std::printf("              threads  %s\n", letters(tasks, group, true).c_str());
    }
  }
}
