#pragma once
#include <nupa/result.h>
#include <nupa/types.h>

#include <memory>

namespace nupa {

class CompletionQueue;

/// A file descriptor that becomes readable when a completion queue that was armed gets an entry.
class CompletionChannel {
 public:
  virtual ~CompletionChannel() = default;
  /// Pollable; O_NONBLOCK may be set on it. Read it only through wait().
  virtual int fd() const = 0;
  /// What lies behind fd(): readable while an event waits, as fd() is, but always writable too. A wait for it to become
  /// readable costs less, since the kernel looks at one descriptor in place of two. It is neither read nor written, and
  /// goes with the channel. Any thread.
  virtual int signal_fd() const = 0;
  /// Takes one event: the queue it came from. Blocks unless fd() is non-blocking.
  /// EAGAIN: nothing there (non-blocking); EINTR: a signal came; ECANCELED: the channel is closed. Any thread.
  virtual Result<CompletionQueue*> wait() = 0;
  /// 0, or EBUSY while a completion queue uses the channel. It ends the calls of wait(); the channel may be deleted
  /// when they have returned.
  virtual int close() = 0;
};

struct CqOptions {
  uint32_t entries = 1;                  ///< at least this many; entries() says how many there are
  CompletionChannel* channel = nullptr;  ///< null: no events
  void* user_context = nullptr;          ///< given back by user_context()
  bool timestamps = false;
  bool ignore_overrun = false;
};

/// IBTA 10.2.6. All calls from any thread.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  /// Takes up to `count` completions. Returns how many, or a negative errno (-EIO after an overrun).
  virtual int poll(WorkCompletion* completions, int count) = 0;
  /// The same with timestamps, for extended queues.
  virtual int poll_ex(WorkCompletionEx* completions, int count) = 0;
  /// Asks for one event at the next completion, or only at the next solicited (or failed) one.
  /// Entries that are there already raise none: poll once more after arming (IBTA 11.4.2.2).
  virtual int arm(bool solicited_only) = 0;
  /// EINVAL: fewer than are now unpolled, 0, or more than the device's max_cqe.
  virtual int resize(uint32_t entries) = 0;
  /// Raise an event only after `count` completions or `period_us` microseconds since the first.
  virtual int moderate(uint16_t count, uint16_t period_us) = 0;
  virtual uint32_t entries() const = 0;
  virtual uint32_t handle() const = 0;
  virtual void* user_context() const = 0;
  virtual CompletionChannel* channel() const = 0;
  /// Events of this queue that wait() has handed out so far (who destroys a queue waits until all are acknowledged).
  virtual uint32_t events_delivered() const = 0;
  /// 0, or EBUSY while a queue pair or shared receive queue uses it. Events not yet taken from the channel are gone.
  virtual int close() = 0;
};

}  // namespace nupa
