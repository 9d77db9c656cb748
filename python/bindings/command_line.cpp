// python/bindings/command_line.cpp
// `python -m keyhole` is the C++ command line, where the extension was built with it.
#include <nanobind/nanobind.h>

#include <csignal>
#include <string>
#include <vector>

#include "keyhole/error.h"
#include "module.h"
#ifdef KEYHOLE_HAVE_CLI
#include "cli/command_line.h"
#include "cli/files.h"
#endif

namespace keyhole::python {
namespace nb = nanobind;
namespace {

#ifdef KEYHOLE_HAVE_CLI
constexpr bool kHasCommandLine = true;

// Installs the command line's own signal handlers while it runs: Ctrl-C must end a benchmark at
// once, and Python would run its handler only afterwards.
class CommandLineSignals {
 public:
  CommandLineSignals() {
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
    cli::install_signal_handlers();
  }
  ~CommandLineSignals() {
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  CommandLineSignals(const CommandLineSignals&) = delete;
  CommandLineSignals& operator=(const CommandLineSignals&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGPIPE};
  struct sigaction before_[std::size(kSignals)];
};

int command_line(nb::list words) {
  std::vector<std::string> texts;  // from bytes, because a file name need not be valid UTF-8
  for (nb::handle word : words) {
    const auto bytes = nb::cast<nb::bytes>(word);
    texts.emplace_back(bytes.c_str(), bytes.size());
  }
  const nb::gil_scoped_release release;
  const CommandLineSignals signals;
  return cli::run_command_line(std::move(texts));
}
#else
constexpr bool kHasCommandLine = false;

int command_line(nb::list) {
  throw Error(
      ErrorKind::unsupported,
      "this build of the package has no command line, because fmt and CLI11 were not found "
      "when it was built; Debian: apt-get install libfmt-dev libcli11-dev, then pip install "
      "it again");
}
#endif

}  // namespace

void add_command_line(nb::module_& module) {
  module.attr("has_command_line") = kHasCommandLine;
  module.def("command_line", &command_line, nb::arg("words"),
             "Runs the command line with these words, as bytes, and returns its exit code.");
}

}  // namespace keyhole::python
