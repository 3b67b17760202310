// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <string>

namespace nupa::cli::collectives {

/// A progress bar on standard error if that is a terminal; otherwise nothing.
class Progress {
 public:
  explicit Progress(size_t steps, bool wanted);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows what is done now, after `done` steps.
  void show(size_t done, const std::string& now) const;
  /// Must be called before anything else is written to the terminal.
  void clear() const;

 private:
  size_t steps_;
  bool is_shown_;
};

}  // namespace nupa::cli::collectives
