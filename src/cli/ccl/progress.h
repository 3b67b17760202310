#pragma once
#include <cstddef>
#include <string>

namespace nupa::cli::collectives {

/// A bar on standard error, where that is a terminal; nothing elsewhere.
class Progress {
 public:
  explicit Progress(size_t steps, bool wanted);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What is done now, after `done` steps.
  void show(size_t done, const std::string& now) const;
  /// Before anything else is written to the terminal.
  void clear() const;

 private:
  size_t steps_;
  bool is_shown_;
};

}  // namespace nupa::cli::collectives
