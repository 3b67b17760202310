// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Functions of the drop-in libibverbs.so.1 for other parts of NUPA. Its version script exports them as NUPA_PRIVATE.
#include <infiniband/verbs.h>

extern "C" {

/// For rsockets: returns nupa::CompletionChannel::signal_fd() of the channel. Any thread.
__attribute__((visibility("default"))) int nupa_verbs_signal_descriptor(ibv_comp_channel* channel);

/// For rsockets: posts one request with IBV_SEND_INLINE whose list may be longer than the queue pair's limit. EINVAL:
/// the post does not execute the request itself, so that the list would have to be kept. Otherwise as ibv_post_send().
__attribute__((visibility("default"))) int nupa_verbs_post_inline(ibv_qp* qp, const ibv_send_wr* wr);

}  // extern "C"
