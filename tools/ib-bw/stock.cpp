// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Stock: an imitation of GVirtuS's own TCP communicator. strace shows that it behaves like
// libstdc++'s stream buffers on a blocking socket, with 8191 bytes each way: a short request leaves
// by one write(2), a long one by one writev(2) of the buffer and the payload; the receiver fills
// its buffer first and then reads into the destination, and a name that is read byte by byte comes
// out of the buffer. Nagle's algorithm stays on, and no end polls. So this file uses a pair of such
// buffers.
#include "tools/ib-bw/stream.h"

#include <cerrno>
#include <cstring>
#include <ext/stdio_filebuf.h>
#include <istream>
#include <memory>
#include <new>
#include <ostream>
#include <unistd.h>

namespace
{

using filebuf = __gnu_cxx::stdio_filebuf<char>;

struct StockStream {
    bw_stream stream; // first: what the C side holds
    filebuf in_buffer;
    filebuf out_buffer;
    std::istream in;
    std::ostream out;

    // The buffers own their descriptors.
    StockStream(const bw_stream_ops *ops, int in_fd, int out_fd)
        : stream{ops, nullptr}, in_buffer(in_fd, std::ios::in), out_buffer(out_fd, std::ios::out),
          in(&in_buffer), out(&out_buffer)
    {
    }
};

StockStream *stock_of(bw_stream *stream)
{
    return reinterpret_cast<StockStream *>(stream);
}

ssize_t stock_read(bw_stream *stream, void *buffer, size_t n)
{
    std::istream &in = stock_of(stream)->in;
    in.read(static_cast<char *>(buffer), static_cast<std::streamsize>(n));
    return in.gcount() == static_cast<std::streamsize>(n) ? static_cast<ssize_t>(n) : 0;
}

ssize_t stock_write(bw_stream *stream, const void *buffer, size_t n)
{
    std::ostream &out = stock_of(stream)->out;
    out.write(static_cast<const char *>(buffer), static_cast<std::streamsize>(n));
    return out ? static_cast<ssize_t>(n) : -EPIPE;
}

int stock_sync(bw_stream *stream)
{
    return stock_of(stream)->out.flush() ? 0 : -EPIPE;
}

void stock_destroy(bw_stream *stream)
{
    delete stock_of(stream);
}

const bw_stream_ops stock_ops = {stock_read, stock_write, stock_sync, stock_destroy};

} // namespace

extern "C" int ibx_bw_stream_of_stock(int fd, bw_stream **stream, ibx_error *err)
{
    int copy = dup(fd);
    if (copy < 0) {
        int code = errno;
        close(fd);
        return ibx_error_set(err, -code, "no descriptor for stock: %s", std::strerror(code));
    }
    try {
        *stream = &(new StockStream(&stock_ops, fd, copy))->stream;
        return 0;
    } catch (const std::bad_alloc &) {
        close(fd);
        close(copy);
        return ibx_error_set(err, -ENOMEM, "no memory for a stock connection");
    }
}
