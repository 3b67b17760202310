// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>

namespace nupa::cli {

/// A wait of a command, from its construction to its destruction. After a second, "nupa: waiting for WHAT" is printed
/// on standard error. Without a thread for it, nothing is printed.
class Waiting {
 public:
  explicit Waiting(std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  struct Notice;
  const std::unique_ptr<Notice> notice_;
};

}  // namespace nupa::cli
