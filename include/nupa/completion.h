// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Completion queues, and channels that wake a program when a completion comes.
#include <nupa/result.h>
#include <nupa/types.h>

#include <memory>

namespace nupa {

class CompletionQueue;

/// A file descriptor that becomes readable when a completion queue that was armed gets an entry.
/// Device::create_channel() makes it. Any thread may call any function.
class CompletionChannel {
 public:
  /// Calls close(). A channel that is still in use is leaked, with an error in the log.
  virtual ~CompletionChannel() = default;
  /// Returns the descriptor to poll. It is readable while an event waits and never writable. O_NONBLOCK may be set on
  /// it. Read it only through wait().
  /// @return The descriptor, which belongs to the channel.
  virtual int fd() const = 0;
  /// Returns the eventfd behind fd(). It is readable while an event waits, as fd() is, but it is always writable, too.
  /// A wait for it to become readable costs less, since the kernel looks at one descriptor instead of two. Do not read
  /// or write it.
  /// @return The descriptor, which belongs to the channel.
  virtual int signal_fd() const = 0;
  /// Takes one event. It blocks unless O_NONBLOCK is set on fd(). Events of several queues are taken in turn.
  /// @return The completion queue that raised the event, or an Error:
  ///   - EAGAIN: no event waits, and fd() is non-blocking.
  ///   - EINTR: a signal handler ran that was installed without SA_RESTART.
  ///   - ECANCELED: the channel was closed.
  ///   - EBADF: fd() was closed.
  ///   - ENODEV: a parent process opened the device.
  virtual Result<CompletionQueue*> wait() = 0;
  /// Closes the channel and ends the calls of wait() with ECANCELED. Delete the channel only after they have returned.
  /// @return 0, or EBUSY: a completion queue uses the channel.
  virtual int close() = 0;
};

/// The options of Device::create_cq().
struct CqOptions {
  uint32_t entries = 1;                  ///< 1 to DeviceAttr::max_cqe; the queue has at least this many
  CompletionChannel* channel = nullptr;  ///< where events go; null: no events
  void* user_context = nullptr;          ///< any value; CompletionQueue::user_context() returns it
  bool timestamps = false;               ///< completions carry the device clock's ticks for poll_ex()
  bool ignore_overrun = false;           ///< the program accepts that completions are lost when the queue is full
};

/// A completion queue (IBTA 10.2.6). Any thread may call any function. Each completion goes to one caller.
class CompletionQueue {
 public:
  /// Calls close(). A queue that is still in use is leaked, with an error in the log.
  virtual ~CompletionQueue() = default;

  /// @name Taking completions
  /// @{

  /// Takes completions, oldest first, and never blocks. It also advances requests whose completions go to this queue.
  /// Completions of one work queue come in the order of their requests (IBTA 10.8.5). A call that leaves completions in
  /// an armed queue raises the event. In a child of fork() the queue is empty.
  /// @param completions room for `count` completions; not null if `count` is greater than 0
  /// @param count the most to take
  /// @return The number of completions taken, 0 if there is none, or -EIO: an overrun has lost completions.
  virtual int poll(WorkCompletion* completions, int count) = 0;
  /// Takes completions with time stamps. It is poll() for queues made with CqOptions::timestamps.
  /// @param completions room for `count` completions; not null if `count` is greater than 0
  /// @param count the most to take
  /// @return As poll().
  virtual int poll_ex(WorkCompletionEx* completions, int count) = 0;
  /// @}

  /// @name Events and size
  /// @{

  /// Requests one event on the channel at the next completion. Entries that are already there raise none: poll once
  /// more after arming (IBTA 11.4.2.2). A queue armed for the next completion stays so if it is then armed for
  /// solicited ones.
  /// @param solicited_only true: only a completion of a solicited send, or one with an error, raises the event
  /// @return 0.
  virtual int arm(bool solicited_only) = 0;
  /// Changes the number of entries. Completions that were not polled stay.
  /// @param entries 1 to DeviceAttr::max_cqe
  /// @return 0 or an errno value; after an error the queue is as before:
  ///   - EINVAL: `entries` is out of range, or too small for the completions that were not polled.
  ///   - EBUSY: a process that writes a completion did not finish within 2 s.
  ///   - ENOMEM or EFBIG: a limit of the process.
  ///   - ENODEV: a parent process opened the device.
  virtual int resize(uint32_t entries) = 0;
  /// Sets bounds on how late an event may come (completion moderation). NUPA accepts any values and raises each event
  /// at once, which is always within the bounds.
  /// @param count completions that an event may wait for
  /// @param period_us microseconds that an event may wait after the first completion
  /// @return 0.
  virtual int moderate(uint16_t count, uint16_t period_us) = 0;
  /// @}

  /// @name Attributes
  /// @{

  /// @return The number of entries, at least CqOptions::entries.
  virtual uint32_t entries() const = 0;
  /// @return The queue's number, unique among the queues of the process.
  virtual uint32_t handle() const = 0;
  /// @return CqOptions::user_context.
  virtual void* user_context() const = 0;
  /// @return CqOptions::channel.
  virtual CompletionChannel* channel() const = 0;
  /// Returns how many events of this queue wait() has returned. Before a program destroys a queue, it waits until it
  /// has acknowledged that many.
  /// @return The number of events since the queue was made.
  virtual uint32_t events_delivered() const = 0;
  /// @}

  /// Closes the queue. Events that were not taken from the channel are dropped.
  /// @return 0, or EBUSY: a queue pair or shared receive queue uses it.
  virtual int close() = 0;
};

}  // namespace nupa
