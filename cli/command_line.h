// cli/command_line.h
// The command line and its verbs. A verb is one file: it declares its options on a CLI11 subcommand
// and returns the function that runs it. A new verb is a new file and one row in command_line.cpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace keyhole::cli {

// All of `keyhole WORDS...`; returns the exit code. Programs other than `keyhole` may call it: the
// Python package does.
int run_command_line(std::vector<std::string> words);

struct Context {
  bool json = false;  // machines read this output: JSON only on stdout
};

// Runs after all options have been read; returns the exit code: kDone or kCheckFailed. Mistakes of
// the user are thrown as keyhole::Error and become exit code 2 in command_line.cpp.
using Runner = std::function<int()>;

Runner add_info(CLI::App& app, Context& context);
Runner add_show(CLI::App& app, Context& context);
Runner add_plan(CLI::App& app, Context& context);
Runner add_run(CLI::App& app, Context& context);
Runner add_check(CLI::App& app, Context& context);
Runner add_bench(CLI::App& app, Context& context);
Runner add_demo(CLI::App& app, Context& context);

}  // namespace keyhole::cli
