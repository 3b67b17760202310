// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <mutex>

#include "core/index_pool.h"
#include "core/object_table.h"
#include "core/qp_table.h"
#include "shm/layout.h"

namespace nupa::core {

class Cq;
class Srq;

/// The objects of one kind, with the numbers that they have in the process's segment. An object takes a number, enters
/// with it, leaves, and gives the number back. Any thread.
template <class T>
class NumberedObjects {
 public:
  /// Numbers from `first` to `limit` - 1. `mutex`: see ObjectTables::mutex().
  NumberedObjects(std::mutex& mutex, uint32_t first, uint32_t limit)
      : mutex_(mutex), numbers_(first, limit), objects_(limit) {}

  IndexPool& numbers() { return numbers_; }
  void enter(T& object, uint32_t index) {
    std::lock_guard lock(mutex_);
    objects_.enter(index, &object);
  }
  /// The service thread does not use the object after this returns.
  void leave(uint32_t index) {
    std::lock_guard lock(mutex_);
    objects_.leave(index);
  }
  /// Null: there is none. One load. The caller ensures that the object is not destroyed while it is used.
  T* at(uint32_t index) const { return objects_.at(index); }
  /// This number and all above it were never used.
  uint32_t high_water() const { return objects_.high_water(); }

 private:
  std::mutex& mutex_;
  IndexPool numbers_;
  ObjectTable<T> objects_;
};

/// The verbs objects of this process by number, as completions, requests of peers and attention bits identify them.
/// Only the numbers of memory regions are here: their table is shared memory. Number 0 of each kind stays unused, so
/// that a zero never means an object. Queue pairs, whose numbers are never 0, use index 0 as well.
class ObjectTables {
 public:
  /// Held by a thread while it works on objects that it found here and that another thread may destroy.
  std::mutex& mutex() { return mutex_; }

  QpTable& qps() { return qps_; }
  const QpTable& qps() const { return qps_; }
  NumberedObjects<Cq>& cqs() { return cqs_; }
  NumberedObjects<Srq>& srqs() { return srqs_; }
  IndexPool& mr_numbers() { return mr_numbers_; }

 private:
  std::mutex mutex_;
  QpTable qps_{mutex_};
  NumberedObjects<Cq> cqs_{mutex_, 1, shm::kMaxCq};
  NumberedObjects<Srq> srqs_{mutex_, 1, shm::kMaxSrq};
  IndexPool mr_numbers_{1, shm::kMaxMr};
};

}  // namespace nupa::core
