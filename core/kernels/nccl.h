#pragma once
#include <cstdint>
#include <string>

#include "weft/core/dtype.h"
#include "weft/core/kernels/cuda_runtime.h"

/// The part of NCCL that Weft uses, without its headers. Defined in cuda/nccl.cpp, which opens the
/// library at first use, and, for emulated GPUs, in cuda/emu/nccl.cpp. Referenced in builds with
/// CUDA only. Every function throws Error (Fault::system) with NCCL's text on failure. Buffers
/// belong to the current device; work runs on a stream, in order.
namespace weft::cuda::nccl {

/// Identifies a communicator: one rank creates it and sends it to the others.
struct Id {
  char bytes[128] = {};
};
using Comm = struct CommTag*;
enum class Reduce : int { sum = 0, max = 2, min = 3 };

/// 22809 for 2.28.9.
int version();
Id make_id();
/// Begins to create a communicator on the current device and does not wait for its other ranks:
/// nothing may be called with it until ready(). Its kernels, and those of what is split from it,
/// use at most `max_blocks` blocks; 0: NCCL's default.
Comm connect(const Id& id, int rank, int size, int max_blocks);
/// Begins to split a communicator into those of its ranks with one colour each, in the order of
/// `key`. Every rank of `parent` calls it, while no operation of `parent` is in progress. When
/// ready(parent), `made` holds this rank's, or null if its colour is kNoColor. NCCL writes `made`
/// meanwhile, also after an error.
inline constexpr int kNoColor = -1;
void split(Comm parent, int color, int key, Comm& made);
/// True once NCCL has taken over the calls so far: the communicator is connected, and the kernels
/// of collectives are in their streams. Does not wait. Throws the error that has occurred
/// meanwhile.
bool ready(Comm comm);
/// Empty, or the error that has occurred meanwhile. Does not wait. Any thread may call it, except
/// between another one's call and its ready().
std::string failure(Comm comm);
void disconnect(Comm comm);
/// Aborts the operations in progress on this rank and destroys the communicator, for use when a
/// rank is lost. Any thread may call it. Waits for all kernels of the device, so it does not return
/// while a kernel of another communicator hangs: revoke all communicators first, or abort all
/// between begin() and end().
void abort(Comm comm);
/// Whether this version of NCCL can revoke: end operations in progress without destroying anything.
bool can_revoke();
void revoke(Comm comm);

/// Groups the calls between begin() and the end into one: sends and receives, or several roots.
void begin();
void end();

void all_reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce reduce,
                Comm comm, rt::StreamHandle stream);
/// Reduces to one rank; the others ignore out.
void reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce reduce, int root,
            Comm comm, rt::StreamHandle stream);
/// `count` elements per rank.
void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, Reduce reduce,
                    Comm comm, rt::StreamHandle stream);
/// `bytes` per rank.
void all_gather(const void* in, void* out, std::int64_t bytes, Comm comm, rt::StreamHandle stream);
void broadcast(const void* in, void* out, std::int64_t bytes, int root, Comm comm,
               rt::StreamHandle stream);
void send(const void* data, std::int64_t bytes, int to, Comm comm, rt::StreamHandle stream);
void receive(void* data, std::int64_t bytes, int from, Comm comm, rt::StreamHandle stream);

}  // namespace weft::cuda::nccl
