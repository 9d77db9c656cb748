// cli/main.cpp
// The program `keyhole`.
#include "cli/command_line.h"
#include "cli/files.h"

int main(int count, char** words) {
  keyhole::cli::install_signal_handlers();
  return keyhole::cli::run_command_line({words + 1, words + count});
}
