#pragma once

namespace nupa::base {

/// A descriptor that a fork's child must not keep: it would hold a name or a port whose owner is gone. The child's copy
/// is closed as it starts. Any thread.
void close_in_children(int fd);
/// Before the descriptor is closed.
void forget_for_children(int fd);

/// The same for as long as it lives.
class ParentOnly {
 public:
  explicit ParentOnly(int fd) : fd_(fd) { close_in_children(fd); }
  ~ParentOnly() { forget_for_children(fd_); }
  ParentOnly(const ParentOnly&) = delete;
  ParentOnly& operator=(const ParentOnly&) = delete;

 private:
  int fd_;
};

}  // namespace nupa::base
