# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls the functions of a module as another one of Cython's would. argv[1]: the folder of the
package. TEST_CALLS=0: it is only imported."""
import ctypes
import importlib
import os
import sys

BYTES = 100000


def functions_of(name):
    """The module's functions, by their names in __pyx_capi__."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    call = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)
    return {key: call(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)))
            for key, capsule in importlib.import_module(name).__pyx_capi__.items()}


def copies(functions):
    """Whether a copy by the device arrives."""
    device = ctypes.c_void_p()
    there = ctypes.create_string_buffer(b'p' * BYTES, BYTES)
    back = ctypes.create_string_buffer(BYTES)
    place = ctypes.byref(device)
    if functions['_cudaMalloc'](ctypes.cast(place, ctypes.c_void_p), BYTES, None, None, None):
        return False
    return (not functions['_cudaMemcpy'](device, ctypes.addressof(there), BYTES, 1, None) and
            not functions['_cudaMemcpyAsync'](ctypes.addressof(back), device, BYTES, 2, None) and
            not functions['_cudaMemcpy'](ctypes.addressof(back), device, BYTES, 2, None) and
            not functions['_cudaFree'](device, None, None, None, None) and back.raw == there.raw)


def version_of(functions):
    """The version of the runtime in the module."""
    version = ctypes.c_int()
    place = ctypes.cast(ctypes.byref(version), ctypes.c_void_p)
    functions['_cudaRuntimeGetVersion'](place, None, None, None, None)
    return version.value


class Channel(ctypes.Structure):
    """cudaChannelFormatDesc"""
    _fields_ = [(name, ctypes.c_int) for name in ('x', 'y', 'z', 'w', 'kind')]


def makes_channel(functions):
    """Whether a function that GVirtuS lacks, and needs no GPU, returns its structure."""
    at = ctypes.cast(functions['_cudaCreateChannelDesc'], ctypes.c_void_p).value
    made = ctypes.PYFUNCTYPE(Channel, *[ctypes.c_int] * 5)(at)(1, 2, 3, 4, 5)
    return [getattr(made, name) for name, _ in Channel._fields_] == [1, 2, 3, 4, 5]


def lead_to(functions, of_thread):
    """Whether they are those for this kind of default streams."""
    ours = ctypes.CDLL(None)

    def address(function):
        return ctypes.cast(function, ctypes.c_void_p).value

    def is_such(name, end):
        return address(functions['_' + name]) == address(getattr(ours, name + end))
    return (is_such('cudaMalloc', '') and is_such('cudaMemcpy', '_ptds' if of_thread else '') and
            is_such('cudaMemcpyAsync', '_ptsz' if of_thread else ''))


def main():
    """The exit status."""
    sys.path.insert(0, sys.argv[1])
    mine = functions_of('mine.runtime')
    bindings = functions_of('cuda.bindings._internal.runtime')
    by_thread = functions_of('cuda.bindings._internal.runtime_ptds')
    wanted = os.environ.get('CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM') == '1'
    nothing = [None] * 5
    if os.environ.get('TEST_CALLS') == '0':
        return 0
    return 0 if (copies(bindings) and bindings['_cudaNothing'](*nothing) == 801 and
                 version_of(bindings) == 13000 and makes_channel(bindings) and
                 lead_to(bindings, wanted) and lead_to(by_thread, True) and
                 bindings['_getLocalRuntimeVersion'](*nothing) == 7 and
                 mine['_cudaMalloc'](*nothing) == 35) else 1


sys.exit(main())
